"""The daemon's JSON as text. Text from servers and operators cannot control the terminal."""

import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from agent.terminal.capabilities import BOLD, RED, coloured, columns
from agent.terminal.cell_width import NARROW, cells, clipped, folded, padded, wrapped

Json = Mapping[str, Any]
GAP = "  "
READABLE = 20  # minimum cells of a prose column while other columns can still shrink
_HELD = "is held: commit its change where the manifest is kept"
SECONDS = 10  # shorter latencies are shown in milliseconds


def safe(text: object) -> str:
    """One line of printable characters; every other character is escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(text)
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their content, or narrower and wrapped to fit the terminal."""
    lines = [tuple(head), *(tuple(safe(cell) for cell in row) for row in rows)]
    widths = _fit_widths(list(zip(*lines, strict=True)), columns())
    first, *rest = (_row(line, widths) for line in lines)
    return coloured(first.rstrip("\n"), BOLD) + "\n" + "".join(rest)


def _fit_widths(shown: Sequence[Sequence[str]], available: int | None) -> list[int]:
    """Widths of the columns. The widest columns shrink until all fit: prose first, then names."""
    widths = [max(map(cells, column)) for column in shown]
    prose = [at for at, column in enumerate(shown) if any(" " in cell.strip() for cell in column[1:])]
    for shrinking, minimum in ((prose, READABLE), (range(len(shown)), NARROW)):
        while available is not None and sum(widths) + len(GAP) * (len(widths) - 1) > available:
            widest = max(shrinking, key=lambda at: widths[at], default=None)
            if widest is None or widths[widest] <= minimum:
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
    """The sentence wrapped to the terminal, or in one line elsewhere."""
    lines = folded(sentence, columns())
    return "".join(f"{line if code is None else coloured(line, code)}\n" for line in lines)


def complain(message: object) -> None:
    remark(f"trimtab: {message}")


def remark(message: str) -> None:
    """Write a message to stderr; stdout is for the answer."""
    width = columns(sys.stderr)
    lines = (line for part in message.splitlines() for line in folded(safe(part), width))
    sys.stderr.writelines(f"{line}\n" for line in lines)


def value(given: object) -> str:
    """A knob's value in command-line notation; null is vLLM's default."""
    if given is None:
        return "default"
    return str(given).lower() if isinstance(given, bool) else safe(given)


def change(suggestion: Json) -> str:
    return ", ".join(
        f"{safe(knob)} {value(suggestion['from'].get(knob))} -> {value(new)}"
        for knob, new in suggestion["to"].items()
    )


def moment(stamp: str | None) -> str:
    """2026-11-20 12:00:00 UTC, from an ISO 8601 timestamp of the API."""
    return "never" if stamp is None else safe(stamp)[:19].replace("T", " ") + " UTC"


def latency(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < SECONDS else f"{seconds:.1f} s"


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
    return text + notes_text(targets)


def notes_text(targets: Sequence[Json]) -> str:
    """The text below a table of targets: faults of the daemon, notes, open suggestions and lost sources."""
    warnings = dict.fromkeys(warning for target in targets for warning in target.get("warnings", ()))
    text = "".join(lines_of(safe(warning), RED) for warning in warnings)
    for target in targets:
        name = safe(target["name"])
        if target["failover"] and target["failover"] != target["note"]:
            text += lines_of(f"{name}: {safe(target['failover'])}", RED)
        for server in target["servers"]:
            if server["failing"] and not target["failover"]:
                text += lines_of(f"{name}: {safe(server['name'])} {safe(server['failing'])}", RED)
        if target["note"]:
            text += lines_of(f"{name}: {safe(target['note'])}")
        if target["waits"]:
            text += lines_of(f"{name}: waits for {safe(target['waits'])}")
        text += _open_suggestions_text(target)
        text += _findings_text(target)
        for source in target["sources"]:
            if not source["available"]:
                text += lines_of(f"{name}: {safe(source['source'])} is lost: {safe(source['why'])}", RED)
    return f"\n{text}" if text else ""


def _open_suggestions_text(target: Json) -> str:
    name = safe(target["name"])
    lines = [f"{one} needs approval: `trimtab approve {one}`" for one in map(safe, target["suggestions"])]
    lines += [f"{one} {_HELD}: `trimtab suggestions {one} --patch`" for one in map(safe, target["held"])]
    return "".join(lines_of(f"{name}: {line}") for line in lines)


def _findings_text(target: Json) -> str:
    """What lint finds in the flags in force, without remarks."""
    found = (one for one in target.get("findings", ()) if one["severity"] != "info")
    lines = (f"{target['name']}: flags, rule {one['rule']}: {one['why']}" for one in found)
    return "".join(lines_of(safe(line)) for line in lines)


def target_line(target: Json) -> str:
    """The state of a target, without measurements, in one line."""
    phase = target["phase"] + (" (paused)" if target["paused"] else "")
    pending = [f"{suggestion} needs approval" for suggestion in target["suggestions"]]
    pending += [f"{suggestion} {_HELD}" for suggestion in target["held"]]
    parts = [phase, *map(_server, target["servers"]), *pending, target["note"], *target.get("warnings", ())]
    return f"{safe(target['name'])}: {safe(', '.join(filter(None, parts)))}"


def rollouts_text(rollouts: Sequence[Json]) -> str:
    """A row for each, and the reasons below; in a terminal several reasons are clipped to a line each."""
    if not rollouts:
        return "no rollouts\n"
    rows = [
        (
            found["id"],
            found["target"],
            (found["phase"] or found["outcome"]).replace("_", " "),
            _step(found),
            found["exposed"]["asked"],
            found["bad_exposed"],
            found["exposed"]["errors"],
            found["exposed"]["stalled"],
            moment(found["started_at"]),
        )
        for found in rollouts
    ]
    whys = (
        (found["id"], found["failover"] or found["parked"] or found["why"] or _waits(found))
        for found in rollouts
    )
    reasons = [f"{safe(name)}: {safe(why)}" for name, why in whys if why]
    width = columns()
    if len(rollouts) > 1 and width is not None:
        reasons = [clipped(reason, width) for reason in reasons]
    text = table(("ID", "TARGET", "STATE", "STEP", "EXPOSED", "BAD", "FAILED", "STALLED", "STARTED"), rows)
    return text + ("\n" if reasons else "") + "".join(map(lines_of, reasons))


def rollout_line(found: Json, *, counts: bool = False) -> str:
    """A rollout in one line; `counts` adds the requests that the new server received."""
    outcome = found["outcome"].replace("_", " ")
    parts = [outcome] if found["ended_at"] else [f"{outcome}: {found['phase']}", f"step {_step(found)}"]
    if counts:
        exposed = found["exposed"]
        kinds = f"{exposed['errors']} failed, {exposed['stalled']} stalled"
        parts += [f"{exposed['asked']} requests exposed, {found['bad_exposed']} bad: {kinds}"]
    parts += [text for text in (found["failover"], found["parked"], found["why"]) if text]
    return safe(f"{found['id']} {', '.join(parts)}")


def _waits(found: Json) -> str:
    return f"waits for {found['waits']}" if found["waits"] else ""


def _step(found: Json) -> str:
    """`2 of 4 (10 %)`."""
    steps = found["plan"]["steps"]
    at = min(found["step"], len(steps) - 1)
    return f"{at + 1} of {len(steps)} ({steps[at]['weight']} %)"


def _server(server: Json) -> str:
    share = "" if server["weight"] is None else f" {server['weight']} %"
    replicas = f" ({server['replicas']} replicas)" if server.get("replicas", 1) > 1 else ""
    return f"{server['name']}{replicas} {server['color']}{share}"


def suggestions_text(suggestions: Sequence[Json]) -> str:
    if not suggestions:
        return "no suggestions\n"
    rows = [
        (
            found["id"],
            found["target"],
            _status(found),
            found["rank"] or "-",
            found["class"],
            change(found),
            found["why"],
        )
        for found in suggestions
    ]
    return table(("ID", "TARGET", "STATUS", "RANK", "CLASS", "CHANGE", "WHY"), rows)


def suggestion_text(found: Json) -> str:
    """Everything that an operator reviews before an approval."""
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
        *(
            [("changed", f"{moment(found['refreshed_at'])}: {safe(found['changed'])}")]
            if found["changed"]
            else []
        ),
        *([("approval", f"by another operator than {safe(found['barred'])}")] if found["barred"] else []),
        ("expires", moment(found["expires_at"])),
        ("status", safe(_status(found))),
    ]
    wrapped_lines = (
        line for label, text in lines for line in folded(f"  {label:9}{text}", columns(), " " * 11)
    )
    shown = "".join(f"{line}\n" for line in (safe(found["id"]), *wrapped_lines))
    return (
        f"{shown}  digest   {safe(found['digest']) or 'none yet'}\n"  # not wrapped, so that it can be copied
    )


def _status(suggestion: Json) -> str:
    return "held" if is_held(suggestion) else str(suggestion["status"])


def is_held(suggestion: Json) -> bool:
    """Whether it is open, but to be committed where the server's manifest is kept."""
    return suggestion["status"] == "open" and bool((suggestion["prospect"] or {}).get("owner"))


def outage_s(suggestion: Json) -> float:
    """Duration of the planned outage; 0 if there is none or it is not known yet."""
    prospect = suggestion["prospect"]
    return float(prospect["outage_s"]) if prospect else 0.0


def _evidence(found: Json) -> str:
    return safe(f"{found['metric']} {found['value']:g} {found['unit']} over {found['window_s']:g} s")
