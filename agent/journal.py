"""The journal: what happened and why, one line each, on disk before anything is done about it.

It is the audit trail and the memory that a restart reads, one mechanism for both. One process writes it,
under the lock of the state directory (agent.lock); anybody may read it. agent.records: what a line holds.
"""

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Self

from rfc8785 import CanonicalizationError

from agent.chain import Head, Verification, chain, verify
from agent.errors import JournalError
from agent.ports import Now
from agent.records import (
    DAEMON,
    LONGEST_LINE,
    Actor,
    BrokenLineError,
    Entry,
    Record,
    line_of,
    parse,
    state_of,
)
from agent.state import State

__all__ = ["DAEMON", "Actor", "Entry", "Head", "Journal", "Record", "Verification", "verify"]

STRIDE = 64
"""Every so many entries the journal remembers where one starts: some bytes of memory for 64 entries."""


class Journal:
    """An open journal. Made by `Journal.open`."""

    def __init__(self, path: Path, now: Now, sync: Callable[[int], None]) -> None:
        self._path = path
        self._now = now
        self._sync = sync
        self._fd = -1
        self._size = 0
        self._head = Head()
        self._starts: list[int] = []  # byte offsets of entries 1, 1 + STRIDE, 1 + 2 * STRIDE, ...
        self._states: dict[str, State] = {}
        self._epoch = 0
        self._boot_id = _boot_id()
        self._host = socket.gethostname()
        self._followers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @classmethod
    def open(cls, path: Path, *, now: Now, sync: Callable[[int], None] = os.fdatasync) -> Self:
        """Open the journal, or create it, and read it all.

        A last line that a crash left unfinished is moved to `audit.torn-<n>` beside it, and an entry says so.
        Raises JournalError when anything else in it is not as it was written.
        """
        journal = cls(path, now, sync)
        try:
            journal._recover()
        except OSError as error:
            journal.close()
            raise JournalError(f"{path}: cannot be opened: {error}") from error
        except JournalError:
            journal.close()
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

    def append(self, entry: Entry) -> Record:
        """Write the entry; it is on disk when this returns.

        Raises JournalError, and leaves the file as it was, when that cannot be.
        """
        seq = self._head.seq + 1
        try:
            line = line_of(entry, seq=seq, prev=self._head.hash, boot_id=self._boot_id, host=self._host)
        except (CanonicalizationError, BrokenLineError) as error:
            raise JournalError(f"{self._path}: {entry.action} cannot be written: {error}") from error
        if len(line) > LONGEST_LINE:
            raise JournalError(f"{self._path}: {entry.action} has {len(line)} bytes, too many")
        self._write(line, seq)
        record = parse(line)
        self._take(record, self._size)
        self._remember(entry.state)
        self._size += len(line)
        for loop, heard in tuple(self._followers):  # a copy: they come and go in another thread
            with suppress(RuntimeError):  # its loop was closed before the iterator was
                loop.call_soon_threadsafe(heard.set)
        return record

    def after(self, seq: int, limit: int) -> list[Record]:
        """The entries with a larger number than `seq`, in order, at most `limit`; read from disk."""
        first = max(seq, 0) + 1
        if first > self._head.seq or limit <= 0:
            return []
        block, skip = divmod(first - 1, STRIDE)
        count = min(limit, self._head.seq - first + 1)
        try:
            with self._path.open("rb") as file:
                file.seek(self._starts[block])
                lines = islice(file, skip, skip + count)
                return [parse(line) for line in lines]
        except (OSError, BrokenLineError) as error:
            raise JournalError(f"{self._path}: entries after {seq} cannot be read: {error}") from error

    def subscribe(self, after: int | None = None) -> AsyncIterator[Record]:
        """Every entry after number `after` (None: from now on), until the iterator is closed.

        Entries are read from disk, so a slow reader costs no memory and misses nothing.
        """
        return self._follow(self._head.seq if after is None else after)

    async def _follow(self, seen: int) -> AsyncIterator[Record]:
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

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

    def _recover(self) -> None:
        new = not self._path.exists()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if new:
            _sync_directory(self._path.parent)
        last: dict[str, Record] = {}
        try:
            with self._path.open("rb") as file:
                for record, length in chain(file):
                    self._take(record, self._size)
                    self._size += length
                    if record["state"] is not None:
                        last[str(record["state"].get("target"))] = record
                file.seek(self._size)
                torn = file.read()
        except BrokenLineError as error:
            bad = self._head.seq + 1
            raise JournalError(
                f"{self._path}: entry {bad} (line {bad}) is bad: {error}. Nothing was changed. "
                f"Keep a copy, find out who wrote to it, and move it away to start a new journal"
            ) from error
        for record in last.values():
            try:
                self._remember(state_of(record))
            except BrokenLineError as error:
                raise JournalError(f"{self._path}: entry {record['seq']}: {error}") from error
        if torn:
            self._set_aside(torn)

    def _set_aside(self, torn: bytes) -> None:
        """Keep the bytes of the unfinished line elsewhere, cut them off here, and say so in an entry."""
        kept = _keep(torn, self._path)
        os.ftruncate(self._fd, self._size)
        digest = hashlib.sha256(torn).hexdigest()
        self.append(
            Entry(
                at=self._now(),
                actor=DAEMON,
                action="audit.truncated_tail",
                why=f"a crash left the last line unfinished; its {len(torn)} bytes are in {kept.name}",
                after={"bytes": len(torn), "sha256": digest, "file": kept.name},
                epoch=self._epoch,
            )
        )

    def _take(self, record: Record, start: int) -> None:
        if (record["seq"] - 1) % STRIDE == 0:
            self._starts.append(start)
        self._head = Head(seq=record["seq"], hash=record["hash"])
        self._epoch = max(self._epoch, record["epoch"])

    def _remember(self, state: State | None) -> None:
        if state is not None:
            self._states[state.target] = state


def _keep(torn: bytes, path: Path) -> Path:
    for number in range(1, 10_000):
        kept = path.with_suffix(f".torn-{number}")
        try:
            fd = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(fd, "wb") as file:
            file.write(torn)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(path.parent)
        return kept
    raise JournalError(f"{path.parent}: holds 9,999 torn lines: move them away")


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
