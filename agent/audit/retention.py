"""How long the journal's files are kept, and the entries that record a removal or a full journal."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from flettner.agent.audit import segments
from flettner.agent.audit.chain import REMOVED
from flettner.agent.audit.records import DAEMON, JournalEntry, JournalRecord, parse_record
from flettner.agent.audit.segments import RetentionLimits, Segment

FULL, HAS_ROOM = "audit.full", "audit.has_room"
HAS_ROOM_SHARE = 0.9
"""A full journal has room again below this share of the limit, so that not each removal ends an alert."""
MAX_REMOVED = 2
"""Closed files removed per rotation, so that a clock that jumps by years does not remove all of them."""

Expired = Sequence[tuple[Segment, JournalRecord]]
"""Closed files to remove, oldest first, each with its last entry."""


def find_expired(older: Sequence[Segment], limits: RetentionLimits, at: datetime) -> Expired:
    """Return the oldest closed files whose entries are all older than the retention time.

    No size removes a file: the writer of many entries could remove what other readers need.
    """
    expired = []
    for segment in older[:MAX_REMOVED]:
        last = parse_record(segments.last_line(segment.path))
        if at - datetime.fromisoformat(last["ts"]) <= timedelta(seconds=limits.keep_s):
            break
        expired.append((segment, last))
    return expired


def removal_entry(expired: Expired, *, at: datetime, epoch: int) -> JournalEntry:
    cuts = [
        {"file": segment.path.name, "first": segment.first, "last": last["seq"], "hash": last["hash"]}
        for segment, last in expired
    ]
    why = f"retention removes entries {expired[0][0].first} to {expired[-1][1]['seq']}"
    return JournalEntry(at=at, actor=DAEMON, action=REMOVED, why=why, after={"cuts": cuts}, epoch=epoch)


def size_entry(size: int, limits: RetentionLimits, *, full: bool, at: datetime, epoch: int) -> JournalEntry:
    """Build the entry that the journal is full, or no longer is."""
    allowed = f"{size / 2**20:.0f} MiB of the {limits.keep_bytes / 2**20:.0f} MiB of keep_mb are used"
    why = (
        f"{allowed} by entries younger than keep, {limits.keep_s / 86400:g} d: no entry is removed, and"
        " proposals of operators are refused until there is room"
        if full
        else f"{allowed}: proposals of operators are accepted again"
    )
    after = {"bytes": size, "limit": limits.keep_bytes}
    action = FULL if full else HAS_ROOM
    return JournalEntry(at=at, actor=DAEMON, action=action, why=why, after=after, epoch=epoch)
