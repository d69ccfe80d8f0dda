"""One daemon at a time: the lock of the state directory, and those of the engines.

The kernel releases the lock of the state directory when its holder exits.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ConfigError, JournalError
from flettner.agent.domain.ports import Lock, Now


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
                f"{state_dir}: another flettner works here (pid {holder}): "
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


def find_locks(config: Config) -> list[Lock]:
    """Return the locks that the engines of all targets need, each once."""
    locks: list[Lock] = []
    for target in config.targets:
        lock: Lock | None = target.engine.plugin.lock()
        if lock is not None and lock not in locks:
            locks.append(lock)
    return locks


async def find_lock_problems(config: Config) -> Sequence[str]:
    """List why no daemon may act here."""
    problems = [await lock.problems(config.state_dir) for lock in find_locks(config)]
    return list(dict.fromkeys(what for several in problems for what in several))


@asynccontextmanager
async def hold_engine_locks(config: Config, now: Now) -> AsyncIterator[None]:
    """Wait for the locks of the engines and hold them. Raises ConfigError, and LockLostError at the end."""
    if problems := await find_lock_problems(config):
        raise ConfigError("\n".join(problems))
    async with AsyncExitStack() as held:
        for lock in find_locks(config):
            await held.enter_async_context(lock.hold(config.state_dir, now))
        yield
