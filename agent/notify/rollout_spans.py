"""A rollout as spans: the rollout itself, its phases, and what happened in each as events. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flettner.agent.audit.records import JournalRecord

Attributes = Mapping[str, str | int | float]

_COUNTS = "target.observed"
"""The action of entries that only keep counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    at: datetime
    name: str  # the action of the entry
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """`id` and `trace` are the same each time that they are computed."""

    trace: bytes  # 16
    id: bytes  # 8
    parent: bytes | None
    name: str
    start: datetime
    end: datetime
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    failure: str = ""  # why the rollout was rolled back


@dataclass(slots=True)
class RolloutEntries:
    """The entries of rollouts that run, as they come."""

    _open: dict[str, list[JournalRecord]] = field(default_factory=dict)

    def add(self, record: JournalRecord) -> tuple[SpanRecord, ...]:
        """Return the spans of a rollout once an entry has its end; else none."""
        rollout = rollout_in(record)
        if rollout is None or (rollout["ended_at"] is not None and rollout["id"] not in self._open):
            return ()
        entries = self._open.setdefault(rollout["id"], [])
        if record["action"] != _COUNTS:
            entries.append(record)
        if rollout["ended_at"] is None:
            return ()
        del self._open[rollout["id"]]
        return build_spans(entries)


def rollout_in(record: JournalRecord) -> dict[str, Any] | None:
    """The latest rollout of the entry's target."""
    return (record["state"] or {}).get("rollout")


def build_spans(entries: Sequence[JournalRecord]) -> tuple[SpanRecord, ...]:
    """`entries`: of one rollout, from its approval to its end; the last one has its outcome."""
    last = entries[-1]
    rollout = rollout_in(last)
    if rollout is None:
        return ()
    trace = hashlib.sha256(f"{last['target']}/{rollout['id']}/{rollout['started_at']}".encode()).digest()[:16]
    failed = str(rollout["why"]) if rollout["outcome"] == "rolled_back" else ""
    root = SpanRecord(
        trace=trace,
        id=_span_id(trace, "rollout"),
        parent=None,
        name=f"rollout {last['target']}",
        start=_time(entries[0]),
        end=_time(last),
        attributes=_describe(last["target"], rollout),
        failure=failed,
    )
    return (root, *_phases(entries, root))


def _phases(entries: Sequence[JournalRecord], root: SpanRecord) -> list[SpanRecord]:
    """A span for each stay in a phase; it has the events of the entries within it, and of its begin."""
    begins = [
        at
        for at, entry in enumerate(entries[:-1])
        if at == 0 or entry["after"].get("phase") != entries[at - 1]["after"].get("phase")
    ]
    spans = []
    for number, (at, until) in enumerate(zip(begins, [*begins[1:], len(entries) - 1], strict=True)):
        phase = str(entries[at]["after"].get("phase", "unknown"))
        within = entries[at : until + 1] if until == len(entries) - 1 else entries[at:until]
        spans.append(
            SpanRecord(
                trace=root.trace,
                id=_span_id(root.trace, f"{number} {phase}"),
                parent=root.id,
                name=phase,
                start=_time(entries[at]),
                end=_time(entries[until]),
                attributes={"flettner.phase": phase},
                events=tuple(map(_event, within)),
            )
        )
    return spans


def _event(entry: JournalRecord) -> SpanEvent:
    evidence = {f"flettner.{row['metric']}": float(row["value"]) for row in entry["evidence"]}
    said = {"flettner.why": entry["why"], "flettner.error": entry["error"].partition("\n")[0]}
    return SpanEvent(
        at=_time(entry),
        name=entry["action"],
        attributes={
            "flettner.actor": str(entry["actor"]["id"]),
            "flettner.audit_seq": entry["seq"],
            **{name: text for name, text in said.items() if text},
            **evidence,
        },
    )


def _describe(target: str, rollout: Mapping[str, Any]) -> Attributes:
    suggestion = rollout["suggestion"]
    proposal = suggestion["proposal"]
    return {
        "flettner.target": target,
        "flettner.rollout": rollout["id"],
        "flettner.suggestion": suggestion["id"],
        "flettner.digest": suggestion["digest"],
        "flettner.rule": proposal["rule"],
        "flettner.policy": suggestion["policy"],
        "flettner.change": ", ".join(f"{knob}={value}" for knob, value in sorted(proposal["to"].items())),
        "flettner.decided_by": suggestion["decided_by"],
        "flettner.strategy": suggestion["preflight"]["strategy"],
        "flettner.outcome": rollout["outcome"],
        "flettner.why": rollout["why"],
        "flettner.lost": rollout.get("lost", 0),
    }


def _span_id(trace: bytes, name: str) -> bytes:
    return hashlib.sha256(trace + name.encode()).digest()[:8]


def _time(entry: JournalRecord) -> datetime:
    return datetime.fromisoformat(entry["ts"])
