"""The lock on Envoy's files: one daemon at a time, and no older one after a newer one."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from flettner.agent.domain.errors import ActError, FencedError

LOCKED_FOR_S = 2.0  # a write holds the lock for milliseconds, the start of an Envoy for a few more
_LONGEST = 128

THIS_PROCESS = uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A daemon. `process` distinguishes two daemons that started at once with the same epoch."""

    epoch: int = 0
    process: str = ""

    @classmethod
    def parse(cls, text: bytes) -> "Writer":
        """No writer if unreadable: only a power cut leaves half a mark, and it ends all daemons."""
        words = text.partition(b"\n")[0].decode("ascii", "replace").split()
        if not words or not words[0].isdecimal():
            return cls()
        return cls(epoch=int(words[0]), process="".join(words[1:2]))

    def refuse_after(self, newest: "Writer") -> None:
        """Raises FencedError."""
        if newest.epoch > self.epoch:
            raise FencedError(
                f"the proxy's files are of epoch {newest.epoch}, this daemon is {self.epoch}: "
                "a newer one has taken over"
            )
        if newest.epoch == self.epoch and newest.process not in {"", self.process}:
            raise FencedError(f"another daemon of the same epoch {self.epoch} has registered with the proxy")


@dataclass(frozen=True, slots=True)
class Fence:
    """A lock file whose content is the newest writer. A lost or old file never lowers it."""

    path: Path

    def newest(self) -> Writer:
        """The newest writer, read without the lock. Raises ActError."""
        try:
            with self.path.open("rb") as file:
                return Writer.parse(file.read(_LONGEST))
        except FileNotFoundError:
            return Writer()
        except OSError as error:
            raise ActError(f"cannot read {self.path}: {error}") from error

    @contextmanager
    def hold(self, writer: Writer) -> Iterator[None]:
        """Exclude other daemons, and older ones from now on. Raises ActError, FencedError, OSError.

        The writes of one daemon for its targets do not wait for each other: they share the lock.
        """
        with locked(self.path, fcntl.LOCK_SH) as fd:
            if Writer.parse(os.pread(fd, _LONGEST, 0)) == writer:
                yield
                return
        with locked(self.path) as fd:
            writer.refuse_after(Writer.parse(os.pread(fd, _LONGEST, 0)))
            with suppress(OSError):  # a full disk: no other daemon can write either
                os.pwrite(fd, f"{writer.epoch} {writer.process}\n".encode(), 0)
            yield


@contextmanager
def locked(path: Path, mode: int = fcntl.LOCK_EX) -> Iterator[int]:
    """Hold a lock file, and yield its descriptor. Raises ActError, OSError."""
    fd = _locked(path, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def _locked(path: Path, mode: int) -> int:
    end_s = time.monotonic() + LOCKED_FOR_S
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass  # held by another, or taken away between the two calls
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() > end_s:
            raise ActError(f"another process holds {path}: is a daemon stopped?")
        time.sleep(0.01)
