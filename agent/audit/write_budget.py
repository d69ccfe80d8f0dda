"""How many bytes of the journal the decisions of operators may take: of each operator, and about each target.

Token buckets, in bytes. Entries are charged after they are written, so that a bucket may be overdrawn: the
caller refuses what can wait (agent/api/admission.py). Entries of the daemon and of policies are not charged.
"""

from dataclasses import dataclass, field
from datetime import datetime

from flettner.agent.audit.records import JournalEntry

PERSON_BYTES = 4 * 2**20
"""An hour's share, and the burst. An entry has about 10 KiB, after a rollout several times that."""
TARGET_BYTES = 4 * PERSON_BYTES
"""More than one operator's share: one operator cannot use up a target's."""
REFILL_S = 3600.0


@dataclass(slots=True)
class WriteBudget:
    _left: dict[tuple[str, str], tuple[float, datetime]] = field(default_factory=dict)  # (bytes, since)

    def charge(self, entry: JournalEntry, size: int) -> None:
        """Charge an entry of `size` bytes to the operator who caused it."""
        if entry.actor.kind == "person":
            for bucket in _buckets(entry.actor.id, entry.target):
                self._left[bucket] = (self._refilled(bucket, entry.at) - size, entry.at)

    def wait_s(self, person: str, target: str, at: datetime) -> float:
        """Return the seconds until neither the operator nor the target is overdrawn; 0: now."""
        short = (
            (-self._refilled(bucket, at) / _size(bucket)) * REFILL_S for bucket in _buckets(person, target)
        )
        return max(0.0, *short)

    def _refilled(self, bucket: tuple[str, str], at: datetime) -> float:
        left, since = self._left.get(bucket, (_size(bucket), at))
        elapsed_s = max(0.0, (at - since).total_seconds())
        return min(_size(bucket), left + elapsed_s / REFILL_S * _size(bucket))


def _buckets(person: str, target: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("person", person), ("target", target)


def _size(bucket: tuple[str, str]) -> float:
    return float(PERSON_BYTES if bucket[0] == "person" else TARGET_BYTES)
