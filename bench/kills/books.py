"""What a site's clients, auditors and observers saw, against what faults may have cost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from typing import Any

from agent.audit import segments
from simulator.tally import RequestRecord

MAY_COST = ("proxy", "blue", "green")
"""The faults that end connections by themselves; all others may cost no request."""
NEAR_S = 0.25  # between a kill here and the end that the kernel gives a connection


@dataclass(slots=True, kw_only=True)
class Fault:
    """Times of the loop's clock. `healed_s`: who died is back, or nobody sends requests there any more."""

    kind: str
    at_s: float
    phase: str = ""
    healed_s: float = 0.0
    back_s: float | None = None  # from a restart of the daemon until it is ready
    cpu_s: float | None = None  # of its own until then
    note: str = ""

    def cost(self, record: RequestRecord) -> bool:
        """Whether the request was in its way: on what died, or sent while nobody could answer."""
        ends_s = self.at_s if self.kind == "green" else self.healed_s
        return record.at <= ends_s + NEAR_S and record.ended >= self.at_s - NEAR_S


@dataclass(slots=True, kw_only=True)
class Books:
    """`seen`: hashes by number of the audit's rows that the API showed; `cut`: rows that a fault took."""

    faults: list[Fault] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    approved: list[str] = field(default_factory=list)  # suggestions whose approval was answered with 200
    unanswered: int = 0  # approvals whose answer the daemon died over
    refused: Counter[int] = field(default_factory=Counter)  # other answers, by status
    seen: dict[int, str] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    orphans: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    green_ended_s: list[float] = field(default_factory=list)  # after the daemon was stopped in a canary

    def lost(self, records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
        """What did not end well, by the kind of fault that it was in the way of; "other": of none."""
        found: dict[str, list[RequestRecord]] = {kind: [] for kind in (*MAY_COST, "other")}
        for record in records:
            if record.outcome != "ok":
                costly = [f.kind for f in self.faults if f.kind in MAY_COST and f.cost(record)]
                found[costly[0] if costly else "other"].append(record)
        return found


def rows(journal: Path) -> list[dict[str, Any]]:
    """Every row of every file of the audit, in order."""
    found = []
    for _, file, _ in segments.open_files(journal):
        found += [loads(line) for line in file.read().splitlines()]
    return found


def missing(books: Books, found: Sequence[dict[str, Any]]) -> list[str]:
    """What the audit should hold and does not."""
    hashes = {row["seq"]: row["hash"] for row in found}
    gone = [f"gap: no row {seq}" for seq in range(1, max(hashes, default=0) + 1) if seq not in hashes]
    gone += [
        f"row {seq} was shown and is another, or none"
        for seq, digest in books.seen.items()
        if hashes.get(seq) != digest and seq not in books.cut
    ]
    approved = {
        (row["state"] or {}).get("suggestion", {}).get("id")
        for row in found
        if row["action"] == "suggestion.approved"
    }
    return gone + [
        f"approval of {one} was answered, and is not there" for one in books.approved if one not in approved
    ]
