"""The journal: one line for each event and its reason, on disk before any effect is performed.

It is both the audit trail and the source of recovery after a restart. One process writes it, under the lock
of the state directory (flettner.agent.runtime.lock); any process may read it. `records.py` defines a line,
`segments.py` the files. The open file starts with the last state of each target, so that a restart
reads no other file in full.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import structlog
from rfc8785 import CanonicalizationError

from flettner.agent.audit import checkpoints, segments
from flettner.agent.audit.chain import REMOVED, Head
from flettner.agent.audit.checkpoints import Signer
from flettner.agent.audit.continuity import ACCEPT, Tail, accepted_entry, check_start, find_mark
from flettner.agent.audit.mark import write_mark
from flettner.agent.audit.offsets import SLICE_BYTES, STRIDE, UNLIMITED, RecordOffsets
from flettner.agent.audit.open_file import OpenFile
from flettner.agent.audit.records import (
    DAEMON,
    LONGEST_LINE,
    BrokenLineError,
    JournalEntry,
    JournalRecord,
    encode_line,
    parse_record,
)
from flettner.agent.audit.recovery import recover
from flettner.agent.audit.segments import RetentionLimits, Segment, TornLine
from flettner.agent.audit.write_budget import WriteBudget
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.ports import Now
from flettner.agent.domain.state import State
from flettner.primitives.files import sync_directory

OPENED = "audit.segment_opened"
FULL, HAS_ROOM = "audit.full", "audit.has_room"
HAS_ROOM_SHARE = 0.9
"""A full journal has room again below this share of the limit, so that not each removal ends an alert."""
MAX_REMOVED = 2
"""Closed files removed per rotation, so that a clock that jumps by years does not remove all of them."""
Expired = Sequence[tuple[Segment, JournalRecord]]
"""Closed files to remove, oldest first, each with its last entry."""
ReadAfter = Callable[[int, int, int], Sequence[JournalRecord]]
"""Reads the entries after a seq: at most a number of them, up to the entry that reaches a size."""

log = structlog.get_logger(__name__)


class Journal:
    """An open journal; see `Journal.open`."""

    def __init__(
        self,
        path: Path,
        now: Now,
        sync: Callable[[int], None],
        limits: RetentionLimits,
        signer: Signer | None,
    ) -> None:
        self._path = path
        self._now = now
        self._limits = limits
        self._signer = signer
        self._file = OpenFile(path, sync)
        self._closed = 0  # bytes of the closed files
        self._full = False  # as the latest entry about it states
        self._opening = 0  # bytes of the state entries that start the open file
        self._head = Head()
        self._since: datetime | None = None  # time of the first entry of the open file
        self._signed = 0  # seq of the last checkpoint
        self._offsets = RecordOffsets(path)
        self._marked = 0  # seq of the mark; 0: none was written since the start
        self._torn = TornLine()
        self._states: dict[str, State] = {}
        self.budget = WriteBudget()
        self._epoch = 0
        self._boot_id = _boot_id()
        self._host = socket.gethostname()
        self._followers = Followers()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        now: Now,
        sync: Callable[[int], None] = os.fdatasync,
        limits: RetentionLimits | None = None,
        signer: Signer | None = None,
        accept: bool = False,
        epoch: int = 0,
    ) -> Self:
        """Open or create the journal, and verify the open file; `audit verify` reads all files.

        A last line that a crash left unfinished is moved to `audit.torn-<n>`, and an entry records this.
        Raises JournalError if anything else in that file was changed, and unless `accept` if the journal does
        not continue the one before (flettner.agent.audit.continuity). `epoch`: the newest one of any
        proxy or server.
        """
        journal = cls(path, now, sync, limits or RetentionLimits(), signer)
        try:
            journal._recover(accept=accept, epoch=epoch)
        except OSError as error:
            journal._file.close()
            raise JournalError(f"{path}: cannot be opened: {error}") from error
        except JournalError:
            journal._file.close()
            raise
        return journal

    @property
    def head(self) -> Head:
        return self._head

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._closed + self._file.size

    @property
    def full(self) -> bool:
        """Whether the size reached its limit, so that what can wait is no longer accepted."""
        room = HAS_ROOM_SHARE if self._full else 1.0
        return self.size >= room * self._limits.keep_bytes

    @property
    def limits(self) -> RetentionLimits:
        return self._limits

    def states(self) -> dict[str, State]:
        """Return the last state of each target."""
        return dict(self._states)

    def epoch(self) -> int:
        """Return the largest epoch of any entry; 0 if there is none."""
        return self._epoch

    def append(self, entry: JournalEntry) -> JournalRecord:
        """Write the entry to disk before returning.

        Raises JournalError if this fails, and leaves the file as it was.
        """
        record = self._append_entry(entry)
        try:
            self._run_housekeeping(entry.at)
        except (BrokenLineError, JournalError, OSError) as error:
            # the entry is written; housekeeping is retried after the next one
            log.warning("audit.housekeeping_failed", why=str(error))
        return record

    def after(self, seq: int, limit: int, limit_bytes: int = UNLIMITED) -> list[JournalRecord]:
        """Read the entries after `seq`, at most `limit`, up to the one that reaches `limit_bytes`."""
        return self._offsets.after(seq, limit, limit_bytes, self._head.seq)

    def subscribe(self, after: int | None = None) -> AsyncIterator[JournalRecord]:
        """Yield every entry after seq `after` (None: from now on), until the iterator is closed.

        Entries are read from disk, so that a slow reader costs no memory and misses none.
        """
        return self._followers.follow(self._head.seq if after is None else after, self.after)

    def close(self) -> None:
        """Sign the unsigned entries and close the file."""
        if self._file.is_open:
            with suppress(JournalError):
                self._sign(self._now())
            with suppress(OSError):
                self._write_mark()
        self._file.close()

    def _append_entry(self, entry: JournalEntry) -> JournalRecord:
        if self._torn:
            self._save_torn_line()
        line, record = self._encode(entry, self._head)
        self._file.write(line, record["seq"])
        self._track(record, len(line))
        self.budget.charge(entry, len(line))
        if entry.state is not None:
            self._states[entry.state.target] = entry.state
        self._followers.notify()
        return record

    def _encode(self, entry: JournalEntry, head: Head) -> tuple[bytes, JournalRecord]:
        """Encode the entry as the line after `head`."""
        try:
            line = encode_line(
                entry, seq=head.seq + 1, prev=head.hash, boot_id=self._boot_id, host=self._host
            )
        except (CanonicalizationError, BrokenLineError) as error:
            raise JournalError(f"{self._path}: {entry.action} cannot be written: {error}") from error
        if len(line) > LONGEST_LINE:
            raise JournalError(
                f"{self._path}: {entry.action} has {len(line)} bytes, more than {LONGEST_LINE}"
            )
        return line, parse_record(line)

    def _run_housekeeping(self, at: datetime) -> None:
        """Sign at the checkpoint interval; rotate the file when it is large or old; report a full journal."""
        if self._head.seq - self._signed >= checkpoints.INTERVAL:
            self._sign(at)
        old = self._since is not None and at - self._since >= timedelta(seconds=self._limits.segment_s)
        if self._file.size - self._opening >= self._limits.segment_bytes or old:
            self._sign(at)
            self._rotate(at)
            self._remove_old(at)
            self._sign(at)
            self._write_mark()
        if not self._marked or self._head.seq - self._marked >= checkpoints.INTERVAL:
            self._write_mark()
        if self.full != self._full:
            self._report_size(at)

    def _report_size(self, at: datetime) -> None:
        """Record that the journal is full, or no longer is."""
        full, entry = self.full, size_entry(self.size, self._limits, full=self.full, at=at, epoch=self._epoch)
        self._append_entry(entry)
        self._full = full
        log.warning(entry.action, why=entry.why)

    def _sign(self, at: datetime) -> None:
        if self._signer is None or self._signed == self._head.seq:
            return
        mark = self._signer.sign(self._head.seq, self._head.hash)
        why = f"signs entry {self._head.seq} and all entries before it"
        self._append_entry(
            JournalEntry(
                at=at, actor=DAEMON, action=checkpoints.ACTION, why=why, after=mark, epoch=self._epoch
            )
        )

    def _rotate(self, at: datetime) -> None:
        """Close this file; start the next one with the last state of each target."""
        name = segments.segment_path(self._path, self._offsets.first)
        opening = JournalEntry(
            at=at,
            actor=DAEMON,
            action=OPENED,
            why=f"continues {name.name}",
            after={"follows": name.name, "seq": self._head.seq, "hash": self._head.hash},
            epoch=self._epoch,
        )
        lines, records, head = [], [], self._head
        for state in self._states.values() or (None,):
            target = state.target if state else ""
            line, record = self._encode(replace(opening, target=target, state=state), head)
            head = Head(seq=record["seq"], hash=record["hash"])
            lines.append(line)
            records.append(record)
        fd = segments.rotate(self._path, self._offsets.first, b"".join(lines))
        self._closed += self._file.size
        self._file.replace(fd)
        self._offsets.rotate()
        for line, record in zip(lines, records, strict=True):
            self._track(record, len(line))
        self._followers.notify()

    def _remove_old(self, at: datetime) -> None:
        """Remove closed files older than the retention time, after an entry that names them."""
        expired = find_expired(self._offsets.older, self._limits, at)
        if not expired:
            return
        self._append_entry(removal_entry(expired, at=at, epoch=self._epoch))
        for segment, _ in expired:  # oldest first: a crash leaves the newer part
            size = segment.path.stat().st_size
            segment.path.unlink()
            self._closed -= size
            self._offsets.forget(segment)
        sync_directory(self._path.parent)

    def _recover(self, *, accept: bool, epoch: int) -> None:
        """`accept`: continue whatever was removed; `epoch`: the newest one known elsewhere, 0 if none."""
        new = not self._path.exists()
        older = segments.closed_segments(self._path)
        if new and older:
            raise JournalError(
                f"{self._path}: does not exist, but {older[-1].path.name} does: the end was removed. "
                f"Nothing was changed. Find out why, move the closed files away, and start with {ACCEPT}"
            )
        tail = Tail(find_mark(self._path, accept=accept))
        if not new:
            segments.remove_leftovers(self._path)
        self._offsets.older = segments.closed_segments(self._path)
        self._closed = sum(segment.path.stat().st_size for segment in self._offsets.older)
        if not new:
            self._read(tail)
        has_key, now = self._signer is not None, self._now()
        problems = check_start(tail, self._path, now, has_key=has_key, epoch=epoch, accept=accept)
        self._file.open()
        if new:
            sync_directory(self._path.parent)
        if self._torn:
            with suppress(JournalError):  # on a full disk, this is retried before the next entry
                self._save_torn_line()
        if problems:
            entry = accepted_entry(problems, at=now, epoch=self._epoch)
            log.warning(entry.action, why=entry.why)
            self._append_entry(entry)

    def _read(self, tail: Tail) -> None:
        """Read the open file, and the end of the closed file before it."""

        def track(record: JournalRecord, length: int) -> None:
            self._track(record, length)
            tail.add(record)

        with suppress(BrokenLineError):  # which `recover` reports
            for segment in self._offsets.older[-1:]:
                tail.add(parse_record(segments.last_line(segment.path)))
        states, self._torn.content = recover(self._path, self._offsets.older, self._signer, track)
        self._states = {state.target: state for state in states}

    def _save_torn_line(self) -> None:
        """Move the unfinished line to a file of its own, and record this in an entry."""
        self._torn.move(self._path, self._file.fd, self._file.size, at=self._now(), epoch=self._epoch)
        entry, self._torn.entry = self._torn.entry, None
        if entry is not None:
            try:
                self._append_entry(entry)
            except JournalError:
                self._torn.entry = entry
                raise

    def _write_mark(self) -> None:
        """Name the head in a file of its own, after it is on disk."""
        if self._head.seq == self._marked:
            return
        write_mark(self._path, self._head, signs=self._signer is not None)
        self._marked = self._head.seq

    def _track(self, record: JournalRecord, length: int) -> None:
        if not self._file.size:
            self._since = datetime.fromisoformat(record["ts"])
        self._offsets.add(record["seq"], self._file.size)
        self._file.size += length
        if record["action"] == OPENED:
            self._opening = self._file.size
        elif record["action"] == checkpoints.ACTION:
            self._signed = record["seq"]
        self._head = Head(seq=record["seq"], hash=record["hash"])
        self._epoch = max(self._epoch, record["epoch"])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(slots=True)
class Followers:
    """Readers that wait for the next entries, each in its own event loop."""

    _waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = field(default_factory=set)

    async def follow(self, seen: int, read: ReadAfter) -> AsyncIterator[JournalRecord]:
        """Yield every entry after seq `seen`, until the iterator is closed."""
        appended = asyncio.Event()
        follower = (asyncio.get_running_loop(), appended)
        self._waiting.add(follower)
        try:
            while True:
                appended.clear()
                for record in read(seen, STRIDE, SLICE_BYTES):
                    appended.set()  # more may follow
                    seen = record["seq"]
                    yield record
                await appended.wait()
        finally:
            self._waiting.discard(follower)

    def notify(self) -> None:
        for loop, appended in tuple(self._waiting):  # a copy: other threads add and remove followers
            with suppress(RuntimeError):  # its loop was closed before the iterator
                loop.call_soon_threadsafe(appended.set)


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
