"""Whether a journal continues the one before: not removed, emptied, cut, restarted, unsigned or misdated.

The chain shows that the present entries belong together, not that they are all. What else is known: the mark
(flettner.agent.audit.mark), a key that has signed, the checkpoints before, and the clock.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from flettner.agent.audit import checkpoints
from flettner.agent.audit.chain import Head, Verification, verify
from flettner.agent.audit.mark import Mark, key_has_signed, mark_path, read_mark
from flettner.agent.audit.records import DAEMON, JournalEntry, JournalRecord
from flettner.agent.audit.segments import closed_segments
from flettner.agent.domain.errors import JournalError

ACCEPTED = "audit.accepted"
"""An operator accepted the journal with its gaps, which do not count any more."""
ACCEPT = "--accept-new-journal"
FUTURE = timedelta(hours=1)
"""The most by which the last entry may be later than the clock, which may have been set back."""

Problem = tuple[int, str]
"""The first bad entry, and what is wrong."""


@dataclass(slots=True)
class Tail:
    """What the entries of a journal say about its end."""

    mark: Mark
    head: Head = field(default_factory=Head)
    ts: str = ""
    signer: str = ""  # id of the key of the last checkpoint
    signed: int = 0  # its seq; 0: none
    unsigned: int = 0  # the first entry that a checkpoint should have preceded; 0: none
    rewritten: bool = False  # the marked entry has another hash

    def add(self, record: JournalRecord) -> None:
        seq, action = record["seq"], record["action"]
        self.head, self.ts = Head(seq=seq, hash=record["hash"]), record["ts"]
        if action == checkpoints.ACTION:
            self.signed, self.signer, self.unsigned = seq, str(record["after"].get("signer")), 0
        elif action == ACCEPTED:
            self.signed, self.signer, self.unsigned = 0, "", 0
        elif self.signed and seq > self.signed + checkpoints.MAX_UNSIGNED:
            self.unsigned = self.unsigned or seq
        if seq == self.mark.head.seq and record["hash"] != self.mark.head.hash:
            self.rewritten = True

    def find_problems(self, journal: Path, now: datetime, *, has_key: bool) -> Iterator[Problem]:
        """Find what does not fit. `has_key`: whether the key that signs checkpoints is there."""
        marked, name = self.mark.head.seq, mark_path(journal).name
        if self.head.seq < marked:
            first = self.head.seq + 1
            yield first, f"{name} names entry {marked}: the journal was removed, emptied or cut off"
        elif self.rewritten:
            yield (
                marked,
                f"it is not the entry that {name} names: the end was rewritten, or the journal was restarted",
            )
        elif not self.head.seq and key_has_signed(journal):
            yield 1, f"{checkpoints.KEY_FILE} has signed entries, and there are none: the journal was removed"
        if self.unsigned:
            yield self.unsigned, f"no checkpoint between {self.signed} and it: the end is not signed"
        elif self.signer and not has_key:
            yield (
                self.head.seq,
                f"the checkpoints before are signed with the key {self.signer}, which is missing",
            )
        if self.ts and datetime.fromisoformat(self.ts) > now + FUTURE:
            yield self.head.seq, f"it is dated {self.ts}, and it is {now:%Y-%m-%dT%H:%MZ} now"


def find_mark(journal: Path, *, accept: bool) -> Mark:
    """Read the mark at a start; with `accept` an unreadable one counts as none. Raises JournalError."""
    try:
        return read_mark(journal)
    except JournalError:
        if not accept:
            raise
        return Mark()


def check_start(
    tail: Tail, journal: Path, now: datetime, *, has_key: bool, epoch: int, accept: bool
) -> Sequence[Problem]:
    """Return what does not fit, if the operator accepts it. `epoch`: the newest one of any proxy or server.

    Raises JournalError otherwise.
    """
    problems = list(tail.find_problems(journal, now, has_key=has_key))
    if not tail.head.seq and epoch and not problems:
        problems = [(1, f"a daemon of epoch {epoch} has acted here: the journal was removed")]
    if problems and not accept:
        first, problem = problems[0]
        raise JournalError(
            f"{journal}: entry {first}: {problem}. Nothing was changed. Keep a copy, find out why, and start"
            f" once with {ACCEPT} to continue from here, which the journal records"
        )
    return problems


def accepted_entry(problems: Collection[Problem], *, at: datetime, epoch: int) -> JournalEntry:
    why = "; ".join(f"entry {first}: {problem}" for first, problem in problems)
    why = f"accepted with {ACCEPT}: {why}"
    return JournalEntry(at=at, actor=DAEMON, action=ACCEPTED, why=why, epoch=epoch)


def verify_in_place(
    journal: Path,
    *,
    now: datetime,
    pins: Collection[Head] = (),
    anchors: Collection[Head] = (),
    keys: Mapping[str, Any] | None = None,
) -> Verification:
    """Verify a journal in its state directory: its chain and its continuity. Writes nothing.

    Raises JournalError if a file cannot be read.
    """
    tail = Tail(read_mark(journal))
    has_key = not tail.mark.key or journal.with_name(tail.mark.key).exists()
    gone = not journal.exists() and (
        tail.mark.head.seq or key_has_signed(journal) or closed_segments(journal)
    )
    if gone:
        return Verification(
            entries=0, ok=False, head=Head(), first_bad=1, where=journal.name, problem="the file was removed"
        )
    result = verify(journal, pins=pins, anchors=anchors, keys=keys, on_record=tail.add)
    first, problem = next(tail.find_problems(journal, now, has_key=has_key), (0, ""))
    if not result.ok or not problem:
        return result
    entries = max(min(result.entries, first - result.first), 0)
    return replace(
        result, ok=False, first_bad=first, where=journal.name, problem=problem, entries=entries, torn_tail=0
    )
