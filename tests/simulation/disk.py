"""The journal of a simulated process: in memory, or the real one on a disk with faults."""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from flettner.agent.audit import open_file as real
from flettner.agent.audit.chain import Head
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import GENESIS, JournalEntry, encode_line, parse_record, parse_state
from flettner.agent.audit.segments import RetentionLimits
from flettner.agent.audit.write_budget import WriteBudget
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.ports import Now
from flettner.agent.domain.state import State
from tests.simulation.adapters import Host, Killed


@dataclass(slots=True)
class Disk:
    """Replaces `os` where the journal writes; writes may fail."""

    full: bool = False
    broken: bool = False  # fsync fails
    tears: Callable[[], None] | None = None  # the process dies during the next write

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of os
        return getattr(os, name)

    def write(self, fd: int, data: bytes) -> int:
        if self.tears is not None:
            dies, self.tears = self.tears, None
            os.write(fd, bytes(data[: len(data) // 2]))
            dies()
            raise Killed
        if self.full:
            if len(data) > 1:
                return os.write(fd, bytes(data[: len(data) // 3 or 1]))
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(fd)

    def journal(self, path: Path, now: Now) -> Journal:
        """The real journal, on this disk."""
        vars(real)["os"] = self
        return Journal.open(path, now=now, sync=self.sync)

    @staticmethod
    def repaired() -> None:
        vars(real)["os"] = os


@dataclass(repr=False, slots=True)
class Memory:
    """A journal in memory; the first restart parses its state from a real line."""

    entries: list[JournalEntry] = field(default_factory=list)
    quick: bool = False
    budget: WriteBudget = field(default_factory=WriteBudget)
    limits: RetentionLimits = field(default_factory=RetentionLimits)
    size: int = 0
    full: bool = False

    @property
    def head(self) -> Head:
        return Head(seq=len(self.entries))

    def append(self, entry: JournalEntry) -> None:
        self.entries.append(entry)

    def states(self) -> dict[str, State]:
        """The states as the real journal reads them from the last entry."""
        last = next((entry for entry in reversed(self.entries) if entry.state is not None), None)
        if last is None or last.state is None:
            return {}
        if self.quick:
            return {last.state.target: last.state}
        line = encode_line(last, seq=len(self.entries), prev=GENESIS, boot_id="", host="")
        state = parse_state(parse_record(line))
        assert state is not None
        return {state.target: state}

    def epoch(self) -> int:
        return max((entry.epoch for entry in self.entries), default=0)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(repr=False, slots=True)
class RecordingJournal:
    """The journal of the loop: the process may die before and after each entry; `read` gets each entry."""

    inner: Journal | Memory
    host: Host
    disk: Disk
    read: Callable[[JournalEntry, int], None]
    trouble: Callable[[str, float], None]

    def append(self, entry: JournalEntry) -> None:
        if self.host.dead:
            raise Killed
        fault = self.host.fault("journal")
        what = fault.what if fault else ""
        if what in {"crash before", "bit flipped"}:
            self.host.kill()
            raise Killed
        if what == "torn":
            self.disk.tears = self.host.kill
        elif fault is not None and what in {"disk full", "fsync fails"}:
            self.trouble(what, fault.lasts_s)
        self.inner.append(entry)
        self.read(entry, self.host.epoch)
        if what == "crash after":
            self.host.kill()
            raise Killed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the rest of the real one
        return getattr(self.inner, name)


@dataclass(repr=False, slots=True, kw_only=True)
class JournalStore:
    """The journals of a history's processes. `home`: folder of the files; None for memory only."""

    disk: Disk
    random: Random
    now: Now
    home: Path | None = None
    flips: bool = False  # before the next one is opened
    read: bool = False  # whether a state was read out of a line
    unseen: list[str] = field(default_factory=list)  # damage that the journal did not detect
    _number: int = 0

    def take(self, before: Journal | Memory | None, *, beside: bool, quick: bool) -> Journal | Memory:
        """The journal of the previous process, or a copy for a parallel one. Raises JournalError."""
        if self.home is None:
            entries = before.entries if isinstance(before, Memory) else []
            quick, self.read = quick or self.read, self.read or bool(entries)
            return Memory(list(entries) if beside else entries, quick)
        place = self.home / f"{self._number}"
        if beside:
            self._number += 1
            place = shutil.copytree(place, self.home / f"{self._number}")
        elif before is not None:
            before.close()
        place.mkdir(exist_ok=True)
        path = place / "audit.jsonl"
        if self.flips and path.exists() and path.stat().st_size > 1:
            self.flips = False
            self._flip(path)
        return self.disk.journal(path, self.now)

    def _flip(self, path: Path) -> None:
        """Flip one bit, which the journal must detect; then restore the operator's copy."""
        content = path.read_bytes()
        at = self.random.randrange(len(content) - 1)  # without its last newline it is a torn line: no damage
        damaged = bytearray(content)
        damaged[at] ^= 1 << self.random.randrange(8)
        path.write_bytes(damaged)
        try:
            self.disk.journal(path, self.now).close()
        except JournalError:
            pass
        else:
            self.unseen.append(f"bit of byte {at} of {len(content)}")
        for other in path.parent.iterdir():
            if other != path and other.name.startswith("audit.torn"):
                other.unlink()
        path.write_bytes(content)
