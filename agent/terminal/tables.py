"""The daemon's JSON as text for people; nothing that a server or a person wrote can steer the terminal."""

import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from agent.terminal.capabilities import BOLD, RED, coloured, columns
from agent.terminal.cell_width import NARROW, cells, clipped, folded, padded, wrapped

Json = Mapping[str, Any]
GAP = "  "
READABLE = 20  # cells; a column of prose is made narrower only with all others
SECONDS = 10  # from so many on a latency is told in them


def safe(text: object) -> str:
    """One line of printable characters; any other is shown as its escape."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(text)
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need; in a terminal as they have room: what is longer goes on below."""
    lines = [tuple(head), *(tuple(safe(cell) for cell in row) for row in rows)]
    widths = _fitting(list(zip(*lines, strict=True)), columns())
    first, *others = (_row(line, widths) for line in lines)
    return coloured(first.rstrip("\n"), BOLD) + "\n" + "".join(others)


def _fitting(shown: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """Widths of the columns. The widest give way until all have room: first prose, then names too."""
    widths = [max(map(cells, column)) for column in shown]
    prose = [at for at, column in enumerate(shown) if any(" " in cell.strip() for cell in column[1:])]
    for giving, least in ((prose, READABLE), (range(len(shown)), NARROW)):
        while room is not None and sum(widths) + len(GAP) * (len(widths) - 1) > room:
            widest = max(giving, key=lambda at: widths[at], default=None)
            if widest is None or widths[widest] <= least:
                break
            widths[widest] -= 1
    return widths


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    indents = (" " * (len(cell) - len(cell.lstrip())) for cell in row)
    parts = [
        [cell] if cells(cell) <= width else wrapped(cell, width, indent, at_hyphens=True)
        for cell, width, indent in zip(row, widths, indents, strict=True)
    ]
    return "".join(
        GAP.join(map(padded, line, widths)).rstrip() + "\n" for line in zip_longest(*parts, fillvalue="")
    )


def lines_of(sentence: str, code: int | None = None) -> str:
    """In as many lines of the terminal as it needs, in one elsewhere."""
    lines = folded(sentence, columns())
    return "".join(f"{line if code is None else coloured(line, code)}\n" for line in lines)


def complain(said: object) -> None:
    remark(f"trimtab: {said}")


def remark(said: str) -> None:
    """On stderr, as all that is no answer."""
    room = columns(sys.stderr)
    lines = (line for part in said.splitlines() for line in folded(safe(part), room))
    sys.stderr.writelines(f"{line}\n" for line in lines)


def value(given: object) -> str:
    """A knob's value as one writes it; null is vLLM's own default."""
    if given is None:
        return "default"
    return str(given).lower() if isinstance(given, bool) else safe(given)


def change(suggestion: Json) -> str:
    return ", ".join(
        f"{safe(knob)} {value(suggestion['from'].get(knob))} -> {value(new)}"
        for knob, new in suggestion["to"].items()
    )


def moment(stamp: str | None) -> str:
    """2026-11-20 12:00:00 UTC, from what the API says."""
    return "never" if stamp is None else safe(stamp)[:19].replace("T", " ") + " UTC"


def latency(found_s: float | None) -> str:
    if found_s is None:
        return "-"
    return f"{found_s * 1000:.0f} ms" if found_s < SECONDS else f"{found_s:.1f} s"


def status_text(targets: Sequence[Json]) -> str:
    if not targets:
        return "no targets\n"
    rows = [
        (
            target["name"],
            target["phase"] + (" (paused)" if target["paused"] else ""),
            target["mode"],
            "-" if target["goodput_rps"] is None else f"{target['goodput_rps']:.1f}/s",
            latency(target["ttft_p95_s"]),
            ", ".join(map(_server, target["servers"])) or "-",
        )
        for target in targets
    ]
    text = table(("TARGET", "PHASE", "MODE", "GOODPUT", "TTFT P95", "SERVERS"), rows)
    return text + below(targets)


def below(targets: Sequence[Json]) -> str:
    """Below a table of them: why each is as it is, what waits for a person, and what is lost."""
    told = ""
    for target in targets:
        name = safe(target["name"])
        if target["note"]:
            told += lines_of(f"{name}: {safe(target['note'])}")
        if target["suggestion"] is not None:
            waits = safe(target["suggestion"])
            told += lines_of(f"{name}: {waits} waits for a person: `trimtab approve {waits}`")
        for source in target["sources"]:
            if not source["available"]:
                told += lines_of(f"{name}: {safe(source['source'])} is lost: {safe(source['why'])}", RED)
    return f"\n{told}" if told else ""


def target_line(target: Json) -> str:
    """All of a target but what is measured, in one line."""
    phase = target["phase"] + (" (paused)" if target["paused"] else "")
    waits = f"{target['suggestion']} waits for a person" if target["suggestion"] is not None else ""
    parts = [phase, *map(_server, target["servers"]), waits, target["note"]]
    return f"{safe(target['name'])}: {safe(', '.join(filter(None, parts)))}"


def rollouts_text(rollouts: Sequence[Json]) -> str:
    """A row for each, and why below: of several a terminal shows where that begins, of one all of it."""
    if not rollouts:
        return "no rollouts\n"
    rows = [
        (
            found["id"],
            found["target"],
            (found["phase"] or found["outcome"]).replace("_", " "),
            _step(found),
            found["exposed"]["total"],
            found["bad_exposed"],
            moment(found["started_at"]),
        )
        for found in rollouts
    ]
    whys = ((found["id"], found["parked"] or found["why"]) for found in rollouts)
    told = [f"{safe(name)}: {safe(why)}" for name, why in whys if why]
    room = columns()
    if len(rollouts) > 1 and room is not None:
        told = [clipped(why, room) for why in told]
    text = table(("ID", "TARGET", "STATE", "STEP", "EXPOSED", "BAD", "STARTED"), rows)
    return text + ("\n" if told else "") + "".join(map(lines_of, told))


def rollout_line(found: Json, *, counts: bool = False) -> str:
    """A rollout in one line; with the requests that met the new server, if they are wanted."""
    outcome = found["outcome"].replace("_", " ")
    told = [outcome] if found["ended_at"] else [f"{outcome}: {found['phase']}", f"step {_step(found)}"]
    if counts:
        told += [f"{found['exposed']['total']} requests exposed, {found['bad_exposed']} bad"]
    told += [text for text in (found["parked"], found["why"]) if text]
    return safe(f"{found['id']} {', '.join(told)}")


def _step(found: Json) -> str:
    """`2 of 4 (10 %)`."""
    steps = found["plan"]["steps"]
    at = min(found["step"], len(steps) - 1)
    return f"{at + 1} of {len(steps)} ({steps[at]['weight']} %)"


def _server(server: Json) -> str:
    share = "" if server["weight"] is None else f" {server['weight']} %"
    return f"{server['name']} {server['color']}{share}"


def suggestions_text(suggestions: Sequence[Json]) -> str:
    if not suggestions:
        return "no suggestions\n"
    rows = [
        (found["id"], found["target"], found["status"], found["class"], change(found), found["why"])
        for found in suggestions
    ]
    return table(("ID", "TARGET", "STATUS", "CLASS", "CHANGE", "WHY"), rows)


def suggestion_text(found: Json) -> str:
    """All that a person must see before an approval."""
    lines = [
        ("change", change(found)),
        ("target", safe(found["target"])),
        ("class", f"{safe(found['class'])}  (rule {safe(found['rule'])}, by {safe(found['policy'])})"),
        ("why", safe(found["why"])),
        ("expects", safe(found["expects"])),
        ("risks", safe(found["risks"])),
        ("source", safe(found["source"])),
        *(("evidence", _evidence(evidence)) for evidence in found["evidence"]),
        *([("outage", f"planned, about {outage_s(found):.0f} s")] if outage_s(found) else []),
        *(("note", safe(note)) for note in found["notes"]),
        ("expires", moment(found["expires_at"])),
        ("status", safe(found["status"])),
    ]
    told = (line for label, text in lines for line in folded(f"  {label:9}{text}", columns(), " " * 11))
    shown = "".join(f"{line}\n" for line in (safe(found["id"]), *told))
    return f"{shown}  digest   {safe(found['digest']) or 'none yet'}\n"  # to be copied: in one piece


def outage_s(suggestion: Json) -> float:
    """How long nothing serves, as planned; 0: there is no outage, or nobody knows yet."""
    prospect = suggestion["prospect"]
    return float(prospect["outage_s"]) if prospect else 0.0


def _evidence(found: Json) -> str:
    return safe(f"{found['metric']} {found['value']:g} {found['unit']} over {found['window_s']:g} s")
