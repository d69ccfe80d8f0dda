"""The page of a change report: what was changed, why, by whom, on which evidence, with which outcome."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from flettner.agent.audit.chain import Head
from flettner.agent.audit.history import Point
from flettner.agent.audit.records import JournalRecord
from flettner.agent.domain.amounts import describe_amount
from flettner.agent.domain.request_counts import RequestCounts, quantile
from flettner.agent.domain.rollout import Canary, Rollout
from flettner.agent.judge.canary.report import report_evidence, report_goodput
from flettner.redaction import mask, masked
from flettner.rules.table import name_of
from flettner.tools.cli.report_charts import chart_evidence, chart_share
from flettner.tools.terminal.values import format_latency, format_value

_TICKS = frozenset({"target.observed"})
"""Actions of the entries that only keep counts, each few seconds."""
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .25em .6em .25em 0; }
th { font-weight: 600; white-space: nowrap; }
tr { border-bottom: 1px solid #8884; } code, td { overflow-wrap: anywhere; }
svg { font: 12px system-ui, sans-serif; } svg text { fill: currentColor; }
.grid { stroke: #8884; } .limit { stroke: #888; stroke-dasharray: 4 3; }
text.limit { stroke: none; fill: #888; }
.outcome { font-size: 1.2em; font-weight: 600; } footer { margin-top: 2em; font-size: .9em; }
@media print {
  :root { color-scheme: light; } body { font-size: 11px; margin: 0; max-width: none; }
  tr, svg { break-inside: avoid; } h2, h3, caption { break-after: avoid; }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A rollout and what the journal says of it."""

    target: str
    rollout: Rollout
    points: Sequence[Point]
    entries: Sequence[JournalRecord]  # of the rollout and of its suggestion, oldest first
    head: Head  # of the journal as it was read
    gpus: int = 0  # of the servers that ran; 0: unknown
    costs: Sequence[tuple[str, str]] = ()  # before and after it


def write_page(change: Change, *, written_at: str, version: str) -> str:
    """Return the page up to its seal."""
    rollout, proposal = change.rollout, change.rollout.suggestion.proposal
    title = escape(f"Change {rollout.id} of {change.target}")
    first, last = change.entries[0], change.entries[-1]
    why = [
        ("reason", proposal.why),
        ("expected", proposal.expects),
        ("risks", proposal.risks),
        ("rule", f"{name_of(proposal.rule)}, by {rollout.suggestion.policy}"),
        ("source", proposal.source),
        *((row.metric, describe_amount(row.value, row.unit)) for row in proposal.evidence),
    ]
    origin = [
        ("audit", f"entries {first['seq']} to {last['seq']}"),
        ("to verify", f"flettner audit verify --pin {last['seq']}:{last['hash']}"),
        ("read up to", f"{change.head.seq}:{change.head.hash}"),
        ("written", f"{written_at} by flettner {version}"),
    ]
    sections = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
        f"<h1>{title}</h1>",
        f'<p class="outcome">{_outcome(rollout)}</p>',
        _section("What", _what(change)),
        _section("Why", why),
        _section("Who", _who(change)),
        _evidence(change),
        _section("Cost", change.costs) if change.costs else "",
        _timeline(change.entries),
        _section("Where this comes from", origin),
    )
    return "\n".join(sections) + "\n"


def _outcome(rollout: Rollout) -> str:
    said = {"promoted": "promoted", "rolled_back": "rolled back", "running": "still running"}[rollout.outcome]
    return escape(f"{said}: {mask(rollout.why)}" if rollout.why else said)


def _what(change: Change) -> list[tuple[str, str]]:
    rollout, suggestion = change.rollout, change.rollout.suggestion
    before, to = masked(suggestion.before), masked(suggestion.proposal.to)
    changed = [(knob, f"{_value(before.get(knob))} → {_value(value)}") for knob, value in sorted(to.items())]
    preflight = suggestion.preflight
    shares = ", ".join(f"{step.weight} %" for step in rollout.plan.steps)
    lost = rollout.lost if isinstance(rollout, Canary) else 0
    return [
        *changed,
        ("strategy", f"{preflight.strategy}: {preflight.why}" if preflight.why else preflight.strategy),
        *(("note", note) for note in suggestion.notes if not note.startswith(preflight.strategy)),
        ("shares", shares),
        ("exposed", f"{rollout.exposed.asked} requests, {rollout.bad_exposed} of them bad, {lost} lost"),
    ]


def _value(value: object) -> str:
    return "default" if value is None else format_value(value)


def _who(change: Change) -> list[tuple[str, str]]:
    """Each decision of a person, a policy or the mode `auto`, with its time and comment."""
    decisions = (entry for entry in change.entries if entry["actor"]["kind"] != "daemon")
    rows = [("digest", change.rollout.suggestion.digest)]
    for entry in decisions:
        who = f"{entry['actor']['id']} ({entry['actor']['kind']}): {entry['action']}"
        comment = entry["after"].get("comment")
        rows.append((_time(entry), f"{who}: {comment}" if comment else who))
    return rows


def _time(entry: JournalRecord) -> str:
    return f"{entry['ts'][:19]}Z"


def _evidence(change: Change) -> str:
    rollout = change.rollout
    if not isinstance(rollout, Canary):
        return _section(
            "Evidence", [("trial", mask(rollout.why) or "values took turns on the servers that run")]
        )
    rows = [(report.stream, mask(report.says)) for report in report_evidence(rollout.evidence)]
    if (goodput := report_goodput(rollout.evidence)) is not None:
        rows.append(("goodput", mask(goodput.says)))
    rows += [("gain", mask(rollout.gain))] if rollout.gain else []
    if rollout.quality is not None:
        rows.append(("answers", mask(rollout.quality.why)))
    sides = [
        ("new, last step", rollout.green_counts),
        ("old beside it", rollout.blue_counts),
        ("old before", rollout.baseline),
    ]
    return _section("Evidence", rows) + _counts(sides) + _charts(change)


def _counts(sides: Sequence[tuple[str, RequestCounts]]) -> str:
    head = "".join(
        f"<th>{cell}</th>" for cell in ("servers", "requests", "failed", "stalled", "TTFT p95", "ITL p95")
    )
    cells = (
        (name, counts.total, counts.errors, counts.stalled, _p95(counts.ttft), _p95(counts.itl))
        for name, counts in sides
    )
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _p95(counts: tuple[int, ...]) -> str:
    seconds = quantile(counts, 0.95)
    return "-" if seconds is None else escape(format_latency(seconds))


def _charts(change: Change) -> str:
    if len(change.points) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    start = change.points[0].at
    seconds = [(point.at - start).total_seconds() for point in change.points]
    streams = sorted({stream for point in change.points for stream in point.judged})
    not_worse = {
        stream: [
            (at, point.judged[stream][1])
            for at, point in zip(seconds, change.points, strict=True)
            if stream in point.judged
        ]
        for stream in streams
    }
    worse = [
        (at, sum(pair[0] for pair in point.judged.values()) / max(1, len(point.judged)))
        for at, point in zip(seconds, change.points, strict=True)
    ]
    share = [(at, float(point.weight)) for at, point in zip(seconds, change.points, strict=True)]
    return (
        "<h3>Evidence that the new servers are not worse, by stream (e-values)</h3>"
        + chart_evidence(not_worse, {20.0: "20: enough"})
        + "<h3>Evidence that they are worse (mean e-value)</h3>"
        + chart_evidence({"worse": worse}, {100.0: "100: roll back"})
        + "<h3>Their share of the traffic</h3>"
        + chart_share(share)
    )


def _timeline(entries: Iterable[JournalRecord]) -> str:
    rows = (
        (str(entry["seq"]), f"{_time(entry)} {entry['action']}: {entry['why']}")
        for entry in entries
        if entry["action"] not in _TICKS
    )
    return _section("Audit", rows)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows if text)
    return f"<h2>{escape(title)}</h2><table>{lines}</table>"
