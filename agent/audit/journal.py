"""The journal: one line for each event and its reason, on disk before any effect is performed.

It is both the audit trail and the source of recovery after a restart. One process writes it, under the lock
of the state directory (agent.runtime.lock); any process may read it. agent.audit.records defines a line,
agent.audit.segments the files. The open file starts with the last state of each target, so that a restart
reads no other file in full.
"""

import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import structlog
from rfc8785 import CanonicalizationError

from agent.audit import checkpoints, segments
from agent.audit.chain import Head
from agent.audit.checkpoints import Signer
from agent.audit.followers import Followers
from agent.audit.offsets import UNLIMITED, RecordOffsets
from agent.audit.records import (
    DAEMON,
    LONGEST_LINE,
    BrokenLineError,
    JournalEntry,
    JournalRecord,
    encode_line,
    parse,
)
from agent.audit.recovery import recover
from agent.audit.retention import HAS_ROOM_SHARE, find_expired, removal_entry, size_entry
from agent.audit.segments import RetentionLimits
from agent.audit.write_budget import WriteBudget
from agent.domain.errors import JournalError
from agent.domain.ports import Now
from agent.domain.state import State

OPENED, TORN = "audit.segment_opened", "audit.truncated_tail"
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
        self._sync = sync
        self._limits = limits
        self._signer = signer
        self._fd = -1
        self._size = 0
        self._closed = 0  # bytes of the closed files
        self._full = False  # as the latest entry about it states
        self._opening = 0  # bytes of the state entries that start the open file
        self._head = Head()
        self._since: datetime | None = None  # time of the first entry of the open file
        self._signed = 0  # seq of the last checkpoint
        self._offsets = RecordOffsets(path)
        self._torn = b""  # an unfinished last line, until it is saved elsewhere
        self._torn_entry: JournalEntry | None = None  # the entry that records it, until written
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
    ) -> Self:
        """Open or create the journal, and verify the open file; `audit verify` reads all files.

        A last line that a crash left unfinished is moved to `audit.torn-<n>`, and an entry records this.
        Raises JournalError if anything else in that file was changed.
        """
        journal = cls(path, now, sync, limits or RetentionLimits(), signer)
        try:
            journal._recover()
        except OSError as error:
            journal._close_file()
            raise JournalError(f"{path}: cannot be opened: {error}") from error
        except JournalError:
            journal._close_file()
            raise
        return journal

    @property
    def head(self) -> Head:
        return self._head

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._closed + self._size

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
        if self._fd >= 0:
            with suppress(JournalError):
                self._sign(self._now())
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append_entry(self, entry: JournalEntry) -> JournalRecord:
        if self._torn or self._torn_entry:
            self._save_torn_line()
        line, record = self._encode(entry, self._head)
        self._write(line, record["seq"])
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
        return line, parse(line)

    def _write(self, line: bytes, seq: int) -> None:
        if self._fd < 0:
            raise JournalError(f"{self._path}: is closed; entry {seq} was not written")
        try:
            if os.fstat(self._fd).st_size != self._size:
                os.ftruncate(self._fd, self._size)  # the rest of an earlier failed write
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            self._sync(self._fd)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise JournalError(f"{self._path}: entry {seq} cannot be written: {error}") from error

    def _run_housekeeping(self, at: datetime) -> None:
        """Sign at the checkpoint interval; rotate the file when it is large or old; report a full journal."""
        if self._head.seq - self._signed >= checkpoints.INTERVAL:
            self._sign(at)
        old = self._since is not None and at - self._since >= timedelta(seconds=self._limits.segment_s)
        if self._size - self._opening >= self._limits.segment_bytes or old:
            self._sign(at)
            self._rotate(at)
            self._remove_old(at)
            self._sign(at)
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
        self._close_file()
        self._offsets.rotate()
        self._closed += self._size
        self._fd, self._size = fd, 0
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
        segments.sync_directory(self._path.parent)

    def _recover(self) -> None:
        new = not self._path.exists()
        older = segments.closed_segments(self._path)
        if new and older:
            raise JournalError(
                f"{self._path}: does not exist, but {older[-1].path.name} does: the end was removed. "
                f"Nothing was changed. Find out why, and move the closed files away to start a new journal"
            )
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if new:
            segments.sync_directory(self._path.parent)
        segments.remove_leftovers(self._path)
        self._offsets.older = segments.closed_segments(self._path)
        self._closed = sum(segment.path.stat().st_size for segment in self._offsets.older)
        states, self._torn = recover(self._path, self._offsets.older, self._signer, self._track)
        self._states = {state.target: state for state in states}
        if self._torn:
            with suppress(JournalError):  # on a full disk, this is retried before the next entry
                self._save_torn_line()

    def _save_torn_line(self) -> None:
        """Move the bytes of the unfinished line to a file of their own, and record this in an entry."""
        if self._torn:
            try:
                saved = segments.save_torn_line(self._torn, self._path)
                os.ftruncate(self._fd, self._size)
            except OSError as error:
                raise JournalError(f"{self._path}: a torn line cannot be moved: {error}") from error
            why = f"a crash left the last line unfinished; its {len(self._torn)} bytes are in {saved.name}"
            digest = hashlib.sha256(self._torn).hexdigest()
            after = {"bytes": len(self._torn), "sha256": digest, "file": saved.name}
            self._torn, self._torn_entry = (
                b"",
                JournalEntry(
                    at=self._now(), actor=DAEMON, action=TORN, why=why, after=after, epoch=self._epoch
                ),
            )
        if (entry := self._torn_entry) is not None:
            self._torn_entry = None
            try:
                self._append_entry(entry)
            except JournalError:
                self._torn_entry = entry
                raise

    def _track(self, record: JournalRecord, length: int) -> None:
        if not self._size:
            self._since = datetime.fromisoformat(record["ts"])
        self._offsets.add(record["seq"], self._size)
        self._size += length
        if record["action"] == OPENED:
            self._opening = self._size
        elif record["action"] == checkpoints.ACTION:
            self._signed = record["seq"]
        self._head = Head(seq=record["seq"], hash=record["hash"])
        self._epoch = max(self._epoch, record["epoch"])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
