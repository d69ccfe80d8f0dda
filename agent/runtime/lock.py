"""One daemon for each state directory: a lock that the kernel releases when its holder exits."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.domain.errors import JournalError


@contextmanager
def hold_lock(state_dir: Path) -> Iterator[None]:
    """Hold `state_dir/lock`, creating the directory if needed. JournalError if another process holds it.

    Uses flock, not lockf: a POSIX lock is lost when any descriptor of the file is closed. The file is never
    removed: a process that opened it before would lock a file that no other process sees.
    """
    fd = _open_locked(state_dir)
    try:
        with suppress(OSError):  # on a full disk only the pid in the error text is missing
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _open_locked(state_dir: Path) -> int:
    path = state_dir / "lock"
    while True:
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JournalError(f"{state_dir}: cannot be used as the state directory: {error}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(fd, path):
                return fd
        except BlockingIOError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise JournalError(
                f"{state_dir}: another trimtab works here (pid {holder}): "
                f"stop it, or configure another state_dir"
            ) from error
        except OSError as error:
            os.close(fd)
            raise JournalError(f"{path}: cannot be locked: {error}") from error
        os.close(fd)  # the file was replaced between open and lock: open the new one


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
