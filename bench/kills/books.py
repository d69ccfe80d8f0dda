"""Records of clients, audit and observers of a site, compared with the permitted cost of faults."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from typing import Any

from flettner.agent.audit import segments
from flettner.simulator.tally import RequestRecord

MAY_COST = ("proxy", "blue", "green")
"""Faults that end connections; all other faults may lose no request."""
NEAR_S = 0.25  # between a kill and the end of its connections


@dataclass(slots=True, kw_only=True)
class Fault:
    """Times of the loop clock. `healed_s`: the killed process is restored, or gets no more requests."""

    kind: str
    at_s: float
    phase: str = ""
    healed_s: float = 0.0
    back_s: float | None = None  # from the restart of the daemon to readiness
    cpu_s: float | None = None  # CPU time of the daemon until then
    note: str = ""

    def cost(self, record: RequestRecord) -> bool:
        """Return whether the fault affects the request: on the killed process, or during its outage."""
        ends_s = self.at_s if self.kind == "green" else self.healed_s
        return record.at <= ends_s + NEAR_S and record.ended >= self.at_s - NEAR_S


@dataclass(slots=True, kw_only=True)
class Books:
    """`seen`: hashes by number of audit rows shown by the API; `cut`: rows removed by a fault."""

    faults: list[Fault] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    approved: list[str] = field(default_factory=list)  # suggestions with an approval answered by 200
    unanswered: int = 0  # approvals without an answer because the daemon was killed
    refused: Counter[int] = field(default_factory=Counter)  # other answers, by status
    seen: dict[int, str] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    orphans: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    green_ended_s: list[float] = field(default_factory=list)  # after the daemon was stopped in a canary

    def lost(self, records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
        """Return failed requests by the kind of fault that explains them; "other": unexplained."""
        lost: dict[str, list[RequestRecord]] = {kind: [] for kind in (*MAY_COST, "other")}
        for record in records:
            if record.outcome != "ok":
                costly = [f.kind for f in self.faults if f.kind in MAY_COST and f.cost(record)]
                lost[costly[0] if costly else "other"].append(record)
        return lost


def rows(journal: Path) -> list[dict[str, Any]]:
    """Return all rows of all audit files, in order."""
    records = []
    for _, file, _ in segments.open_files(journal):
        records += [loads(line) for line in file.read().splitlines()]
    return records


def carried_out(row: Mapping[str, Any]) -> str | None:
    """Return the id of the suggestion that the latest rollout carries out."""
    rollout = (row["state"] or {}).get("rollout")
    return str(rollout["suggestion"]["id"]) if rollout else None


def missing(books: Books, records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows missing from the audit."""
    hashes = {row["seq"]: row["hash"] for row in records}
    gone = [f"gap: no row {seq}" for seq in range(1, max(hashes, default=0) + 1) if seq not in hashes]
    gone += [
        f"row {seq} was shown and is another, or none"
        for seq, digest in books.seen.items()
        if hashes.get(seq) != digest and seq not in books.cut
    ]
    approved = {carried_out(row) for row in records if row["action"] == "suggestion.approved"}
    return gone + [
        f"approval of {suggestion} was answered, and is not there"
        for suggestion in books.approved
        if suggestion not in approved
    ]
