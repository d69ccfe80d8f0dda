"""The journal: what happened and why, one line each, on disk before anything is done about it.

It is the audit trail and the memory that a restart reads, one mechanism for both. One process writes it,
under the lock of the state directory (agent.runtime.lock); any process may read it. agent.audit.records
defines a line, agent.audit.segments the files. The file that grows starts with the last state of each
target, so that a restart reads no other.
"""

import asyncio
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
from agent.audit.chain import REMOVED, Head
from agent.audit.checkpoints import Signer
from agent.audit.offsets import STRIDE, RecordOffsets
from agent.audit.records import (
    DAEMON,
    LONGEST_LINE,
    BrokenLineError,
    JournalEntry,
    JournalRecord,
    encode_line,
    parse,
)
from agent.audit.recovery import reread
from agent.audit.segments import RetentionLimits
from agent.domain.errors import JournalError
from agent.domain.ports import Now
from agent.domain.state import State

OPENED, TORN = "audit.segment_opened", "audit.truncated_tail"
AT_ONCE = 2
"""Closed files that may go each time one is closed: a clock that jumps by years does not take them all."""
log = structlog.get_logger(__name__)


class Journal:
    """An open journal. Made by `Journal.open`."""

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
        self._opening = 0  # bytes of the lines that the file that grows began with
        self._head = Head()
        self._since: datetime | None = None  # time of that entry
        self._signed = 0  # number of the last checkpoint
        self._pages = RecordOffsets(path)
        self._torn = b""  # what a crash left unfinished, until it is set aside
        self._owed: JournalEntry | None = None  # what says so
        self._states: dict[str, State] = {}
        self._epoch = 0
        self._boot_id = _boot_id()
        self._host = socket.gethostname()
        self._followers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

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
        """Open the journal, or create it, and read the file that grows; `audit verify` reads them all.

        A last line that a crash left unfinished is moved to `audit.torn-<n>` beside it, and an entry says so.
        Raises JournalError when anything else in that file is not as it was written.
        """
        journal = cls(path, now, sync, limits or RetentionLimits(), signer)
        try:
            journal._recover()
        except OSError as error:
            journal._shut()
            raise JournalError(f"{path}: cannot be opened: {error}") from error
        except JournalError:
            journal._shut()
            raise
        return journal

    @property
    def head(self) -> Head:
        return self._head

    def states(self) -> dict[str, State]:
        """The last state of each target."""
        return dict(self._states)

    def epoch(self) -> int:
        """The largest that any entry names; 0 if none does."""
        return self._epoch

    def append(self, entry: JournalEntry) -> JournalRecord:
        """Write the entry; it is on disk when this returns.

        Raises JournalError, and leaves the file as it was, when that cannot be.
        """
        record = self._put(entry)
        try:
            self._keep_house(entry.at)
        except (BrokenLineError, JournalError, OSError) as error:
            # the entry is written; the rest is tried again after the next one
            log.warning("audit.housekeeping_failed", why=str(error))
        return record

    def after(self, seq: int, limit: int) -> list[JournalRecord]:
        """The entries with a larger number than `seq`, in order, at most `limit`; read from disk."""
        return self._pages.after(seq, limit, self._head.seq)

    def subscribe(self, after: int | None = None) -> AsyncIterator[JournalRecord]:
        """Every entry after number `after` (None: from now on), until the iterator is closed.

        Entries are read from disk, so a slow reader costs no memory and misses nothing.
        """
        return self._follow(self._head.seq if after is None else after)

    async def _follow(self, seen: int) -> AsyncIterator[JournalRecord]:
        heard = asyncio.Event()
        follower = (asyncio.get_running_loop(), heard)
        self._followers.add(follower)
        try:
            while True:
                heard.clear()
                for record in self.after(seen, STRIDE):
                    heard.set()  # there may be more
                    seen = record["seq"]
                    yield record
                await heard.wait()
        finally:
            self._followers.discard(follower)

    def close(self) -> None:
        """Sign what is not signed yet, and let go of the file."""
        if self._fd >= 0:
            with suppress(JournalError):
                self._sign(self._now())
        self._shut()

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, entry: JournalEntry) -> JournalRecord:
        if self._torn or self._owed:
            self._set_aside()
        line, record = self._line(entry, self._head)
        self._write(line, record["seq"])
        self._take(record, len(line))
        if entry.state is not None:
            self._states[entry.state.target] = entry.state
        self._tell()
        return record

    def _tell(self) -> None:
        for loop, heard in tuple(self._followers):  # a copy: they come and go in another thread
            with suppress(RuntimeError):  # its loop was closed before the iterator was
                loop.call_soon_threadsafe(heard.set)

    def _line(self, entry: JournalEntry, head: Head) -> tuple[bytes, JournalRecord]:
        """The line that stands for the entry after `head`."""
        try:
            line = encode_line(
                entry, seq=head.seq + 1, prev=head.hash, boot_id=self._boot_id, host=self._host
            )
        except (CanonicalizationError, BrokenLineError) as error:
            raise JournalError(f"{self._path}: {entry.action} cannot be written: {error}") from error
        if len(line) > LONGEST_LINE:
            raise JournalError(f"{self._path}: {entry.action} has {len(line)} bytes, too many")
        return line, parse(line)

    def _write(self, line: bytes, seq: int) -> None:
        if self._fd < 0:
            raise JournalError(f"{self._path}: is closed; entry {seq} was not written")
        try:
            if os.fstat(self._fd).st_size != self._size:
                os.ftruncate(self._fd, self._size)  # what an earlier failure could not take back
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            self._sync(self._fd)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise JournalError(f"{self._path}: entry {seq} cannot be written: {error}") from error

    def _keep_house(self, at: datetime) -> None:
        """Sign every so many entries; go on in a new file when this one is large or old."""
        if self._head.seq - self._signed >= checkpoints.EVERY:
            self._sign(at)
        old = self._since is not None and at - self._since >= timedelta(seconds=self._limits.segment_s)
        if self._size - self._opening >= self._limits.segment_bytes or old:
            self._sign(at)
            self._go_on(at)
            self._remove_old(at)
            self._sign(at)

    def _sign(self, at: datetime) -> None:
        if self._signer is None or self._signed == self._head.seq:
            return
        mark = self._signer.mark(self._head.seq, self._head.hash)
        why = f"signs entry {self._head.seq} and with it all before it"
        self._put(
            JournalEntry(
                at=at, actor=DAEMON, action=checkpoints.ACTION, why=why, after=mark, epoch=self._epoch
            )
        )

    def _go_on(self, at: datetime) -> None:
        """Close this file; the next one starts with the last state of each target."""
        name = segments.name_of(self._path, self._pages.first)
        opening = JournalEntry(
            at=at,
            actor=DAEMON,
            action=OPENED,
            why=f"goes on from {name.name}",
            after={"follows": name.name, "seq": self._head.seq, "hash": self._head.hash},
            epoch=self._epoch,
        )
        lines, records, head = [], [], self._head
        for state in self._states.values() or (None,):
            target = state.target if state else ""
            line, record = self._line(replace(opening, target=target, state=state), head)
            head = Head(seq=record["seq"], hash=record["hash"])
            lines.append(line)
            records.append(record)
        fd = segments.replace(self._path, self._pages.first, b"".join(lines))
        self._shut()
        self._pages.turn()
        self._fd, self._size = fd, 0
        for line, record in zip(lines, records, strict=True):
            self._take(record, len(line))
        self._tell()

    def _remove_old(self, at: datetime) -> None:
        """Closed files whose time is over, or that are too many, go; first an entry says which."""
        older = self._pages.older
        sizes = [segment.path.stat().st_size for segment in older]
        going, left = [], sum(sizes) + self._size
        for segment, size in zip(older[:AT_ONCE], sizes, strict=False):
            last = parse(segments.last_line(segment.path))
            old = at - datetime.fromisoformat(last["ts"]) > timedelta(seconds=self._limits.keep_s)
            if not old and left <= self._limits.keep_bytes:
                break
            going.append((segment, last))
            left -= size
        if not going:
            return
        cuts = [
            {"file": s.path.name, "first": s.first, "last": r["seq"], "hash": r["hash"]} for s, r in going
        ]
        why = f"entries {going[0][0].first} to {going[-1][1]['seq']} are removed: their time is over"
        self._put(
            JournalEntry(
                at=at, actor=DAEMON, action=REMOVED, why=why, after={"cuts": cuts}, epoch=self._epoch
            )
        )
        for segment, _ in going:  # the oldest first: what a crash leaves is the newer part
            segment.path.unlink()
            self._pages.forget(segment)
        segments.sync_directory(self._path.parent)

    def _recover(self) -> None:
        new = not self._path.exists()
        older = segments.closed(self._path)
        if new and older:
            raise JournalError(
                f"{self._path}: is not there, though {older[-1].path.name} is: the end was taken away. "
                f"Nothing was changed. Find out by whom, and move the others away to start a new journal"
            )
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if new:
            segments.sync_directory(self._path.parent)
        segments.tidy(self._path)
        self._pages.older = segments.closed(self._path)
        states, self._torn = reread(self._path, self._pages.older, self._signer, self._take)
        self._states = {state.target: state for state in states}
        if self._torn:
            with suppress(JournalError):  # a full disk; it is done before the next entry is written
                self._set_aside()

    def _set_aside(self) -> None:
        """Keep the bytes of the unfinished line elsewhere, cut them off here, and say so in an entry."""
        if self._torn:
            try:
                kept = segments.keep_aside(self._torn, self._path)
                os.ftruncate(self._fd, self._size)
            except OSError as error:
                raise JournalError(f"{self._path}: a torn line cannot be set aside: {error}") from error
            why = f"a crash left the last line unfinished; its {len(self._torn)} bytes are in {kept.name}"
            digest = hashlib.sha256(self._torn).hexdigest()
            after = {"bytes": len(self._torn), "sha256": digest, "file": kept.name}
            self._torn, self._owed = (
                b"",
                JournalEntry(
                    at=self._now(), actor=DAEMON, action=TORN, why=why, after=after, epoch=self._epoch
                ),
            )
        if (owed := self._owed) is not None:
            self._owed = None
            try:
                self._put(owed)
            except JournalError:
                self._owed = owed
                raise

    def _take(self, record: JournalRecord, length: int) -> None:
        if not self._size:
            self._since = datetime.fromisoformat(record["ts"])
        self._pages.note(record["seq"], self._size)
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
