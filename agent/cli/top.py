"""`trimtab top`: all targets at a glance, live in a terminal."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.api.client import ApiClient, Json
from agent.cli.dispatch import Subparsers
from agent.cli.remote_command import add, show
from agent.cli.watch import watched
from agent.terminal.capabilities import columns, has_screen
from agent.terminal.cell_width import cells
from agent.terminal.tables import GAP, below, latency, table

LEAVING = ("RUNNING", "TRAFFIC", "PREEMPT", "BURN", "TTFT P95")  # columns a narrow terminal does without
WORDS = ("TARGET", "PHASE")  # columns of words; the others are numbers
LONGEST = 16  # cells; words that are longer may go on below
SAYS = "live: every target's traffic, SLO, queue, KV cache and phase"
HUNDRED = 100
MEANT = (
    "TRAFFIC: requests a second, and GOODPUT those of them that met every latency that is promised. SLO MET: "
    "the share of the last minutes' requests that met the promise which is kept worst. BURN: how many times "
    "faster than it may the error budget is used up, in the window where that is worst. PREEMPT: requests a "
    "second that lost their KV cache to others. A narrow terminal does without "
    f"{', '.join(LEAVING)}, in this order."
)


def register(subparsers: Subparsers) -> None:
    add(subparsers, "top", _top, SAYS).description = MEANT


def _top(args: argparse.Namespace, daemon: ApiClient) -> int:
    def screen() -> str:
        return top_text(daemon.get("/v1/targets")["targets"])

    if has_screen() and not args.json:
        return watched(screen, dict)
    answer = daemon.get("/v1/targets")
    return show(args, answer, top_text(answer["targets"]))


def top_text(targets: Sequence[Json]) -> str:
    """A row of numbers for each target, and below it their sentences."""
    if not targets:
        return "no targets\n"
    shown = {name: _column(name, map(cell, targets)) for name, cell in CELLS.items()}
    for name in LEAVING:
        if not _has_room(list(shown.values())):
            del shown[name]
    head, *rows = zip(*shown.values(), strict=True)
    return table(head, rows) + below(targets)


def _column(name: str, told: Iterable[str]) -> list[str]:
    """Its head and its cells; numbers stand at the right."""
    lines = [name, *told]
    width = max(map(len, lines))
    return lines if name in WORDS else [line.rjust(width) for line in lines]


def _has_room(shown: Sequence[Sequence[str]]) -> bool:
    room = columns()
    widths = [min(max(map(cells, column)), LONGEST) for column in shown]
    return room is None or sum(widths) + len(GAP) * (len(widths) - 1) <= room


def _phase(target: Json) -> str:
    """With the share of the traffic that new servers have."""
    green = sum(server["weight"] or 0 for server in target["servers"] if server["color"] == "green")
    share = f" {green} %" if green else ""
    return f"{target['phase']}{share}{' (paused)' if target['paused'] else ''}"


def _traffic(target: Json) -> str:
    reading = target["reading"]
    requests = sum(reading["requests"].values()) if reading else 0
    return f"{_number(requests / reading['span_s'])}/s" if requests else "-"


def _goodput(target: Json) -> str:
    return "-" if target["goodput_rps"] is None else f"{_number(target['goodput_rps'])}/s"


def _met(target: Json) -> str:
    budget = target["budget"]  # the shortest window comes first
    return f"{1 - budget[0]['bad'] / budget[0]['of']:.2%}" if budget else "-"


def _burn(target: Json) -> str:
    return f"{_number(max(burn['rate'] for burn in target['budget']))}x" if target["budget"] else "-"


def _mean(name: str, says: Callable[[float], str]) -> Callable[[Json], str]:
    def cell(target: Json) -> str:
        trend = (target["reading"] or {}).get(name)
        return says(trend["mean"]) if trend else "-"

    return cell


def _number(found: float) -> str:
    digits = 2 if found < 1 else 1 if found < HUNDRED else 0
    return f"{found:.{digits}f}" if found else "0"


CELLS: Mapping[str, Callable[[Json], str]] = {
    "TARGET": lambda target: str(target["name"]),
    "PHASE": _phase,
    "TRAFFIC": _traffic,
    "GOODPUT": _goodput,
    "SLO MET": _met,
    "BURN": _burn,
    "RUNNING": _mean("running", _number),
    "QUEUE": _mean("waiting", _number),
    "KV": _mean("kv_usage", "{:.0%}".format),
    "PREEMPT": _mean("preemptions_per_s", lambda found: f"{_number(found)}/s"),
    "TTFT P95": lambda target: latency(target["ttft_p95_s"]),
}
