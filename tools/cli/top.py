"""`flettner top`: the load of all targets in one table, live in a terminal."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence

from flettner.agent.api.client import ApiClient, Json
from flettner.tools.cli.dispatch import Subparsers
from flettner.tools.cli.remote_command import add_remote_command, print_answer
from flettner.tools.cli.resource_text import format_notes
from flettner.tools.cli.watch import watch
from flettner.tools.terminal.capabilities import has_screen, terminal_width
from flettner.tools.terminal.cell_width import count_cells
from flettner.tools.terminal.tables import GAP, format_table
from flettner.tools.terminal.values import format_latency

OPTIONAL = ("RUNNING", "TRAFFIC", "PREEMPT", "BURN", "TTFT P95")  # hidden in this order in a narrow terminal
TEXT = ("TARGET", "PHASE")  # columns of text; all other columns are numbers
MAX_CELLS = 16  # longer text may wrap
HUNDRED = 100
COLUMNS = (
    "TRAFFIC: requests per second. GOODPUT: requests per second that met every latency objective. SLO MET: "
    "share of the requests of the last minutes that met the worst objective. BURN: consumption of the error "
    "budget relative to the allowed rate, in the worst window. PREEMPT: requests per second that lost their "
    f"KV cache. A narrow terminal hides {', '.join(OPTIONAL)}, in this order."
)


def add_top(subparsers: Subparsers) -> None:
    summary = "show live traffic, SLO, queue and KV cache of all targets"
    add_remote_command(subparsers, "top", _top, summary, COLUMNS)


def _top(args: argparse.Namespace, daemon: ApiClient) -> int:
    def screen() -> str:
        return top_text(daemon.get("/v1/targets")["targets"])

    if has_screen() and not args.json:
        return watch(screen, dict)
    answer = daemon.get("/v1/targets")
    return print_answer(args, answer, top_text(answer["targets"]))


def top_text(targets: Sequence[Json]) -> str:
    """Return a row of numbers for each target, and below the table their notes."""
    if not targets:
        return "no targets\n"
    shown = {name: _column(name, map(cell, targets)) for name, cell in CELLS.items()}
    for name in OPTIONAL:
        if not _fits(list(shown.values())):
            del shown[name]
    head, *rows = zip(*shown.values(), strict=True)
    return format_table(head, rows) + format_notes(targets)


def _column(name: str, values: Iterable[str]) -> list[str]:
    """Return the header and the cells; numbers are right-aligned."""
    lines = [name, *values]
    width = max(map(len, lines))
    return lines if name in TEXT else [line.rjust(width) for line in lines]


def _fits(shown: Sequence[Sequence[str]]) -> bool:
    available = terminal_width()
    widths = [min(max(map(count_cells, column)), MAX_CELLS) for column in shown]
    return available is None or sum(widths) + len(GAP) * (len(widths) - 1) <= available


def _phase(target: Json) -> str:
    """Return the phase with the new servers' share of the traffic."""
    green = sum(server["weight"] or 0 for server in target["servers"] if server["color"] == "green")
    share = f" {green} %" if green else ""
    return f"{target['phase']}{share}{' (paused)' if target['paused'] else ''}"


def _traffic(target: Json) -> str:
    reading = target["reading"]
    ends = reading["requests"] if reading else {}
    requests = sum(count for end, count in ends.items() if end != "stalled")  # those end later
    return f"{_number(requests / reading['span_s'])}/s" if requests else "-"


def _goodput(target: Json) -> str:
    return "-" if target["goodput_rps"] is None else f"{_number(target['goodput_rps'])}/s"


def _slo_met(target: Json) -> str:
    budget = target["budget"]  # the shortest window comes first
    return f"{1 - budget[0]['bad'] / budget[0]['of']:.2%}" if budget else "-"


def _burn(target: Json) -> str:
    return f"{_number(max(burn['rate'] for burn in target['budget']))}x" if target["budget"] else "-"


def _mean(name: str, format_value: Callable[[float], str]) -> Callable[[Json], str]:
    def cell(target: Json) -> str:
        trend = (target["reading"] or {}).get(name)
        return format_value(trend["mean"]) if trend else "-"

    return cell


def _number(value: float) -> str:
    digits = 2 if value < 1 else 1 if value < HUNDRED else 0
    return f"{value:.{digits}f}" if value else "0"


CELLS: Mapping[str, Callable[[Json], str]] = {
    "TARGET": lambda target: str(target["name"]),
    "PHASE": _phase,
    "TRAFFIC": _traffic,
    "GOODPUT": _goodput,
    "SLO MET": _slo_met,
    "BURN": _burn,
    "RUNNING": _mean("running", _number),
    "QUEUE": _mean("waiting", _number),
    "KV": _mean("kv_usage", "{:.0%}".format),
    "PREEMPT": _mean("preemptions_per_s", lambda value: f"{_number(value)}/s"),
    "TTFT P95": lambda target: format_latency(target["ttft_p95_s"]),
}
