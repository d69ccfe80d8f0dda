"""Read /proc: processes, their command lines and environments, and the owners of listening ports."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"  # state in /proc/net/tcp


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process. `started` (clock ticks since boot) tells it from a later process of the same pid."""

    pid: int
    started: int
    parent: int
    group: int
    session: int
    zombie: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSocket:
    """A TCP socket that listens. `user`: id; `host`: the address in the kernel's hexadecimal form."""

    inode: int
    user: int
    host: str


def process(pid: int) -> Process | None:
    """Return the process of this pid; None: there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, parent, group, session, *rest = stat.rpartition(")")[2].split()
    return Process(
        pid=pid,
        started=int(rest[15]),
        parent=int(parent),
        group=int(group),
        session=int(session),
        zombie=state in {"Z", "X", "x"},
    )


def began_at(process: Process) -> datetime | None:
    """Return the local time at which the process began; None if the boot time cannot be read."""
    with suppress(OSError, ValueError, StopIteration):
        stat = (_PROC / "stat").read_text(encoding="ascii")
        boot_s = next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("btime "))
        began_s = boot_s + process.started / os.sysconf("SC_CLK_TCK")
        return datetime.fromtimestamp(began_s, UTC).astimezone()
    return None


def processes() -> Iterator[Process]:
    """Yield all running processes, without zombies."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (running := process(int(entry.name))) and not running.zombie:
            yield running


def runs(earlier: Process) -> bool:
    """Return whether this process still runs, not another one of the same pid."""
    now = process(earlier.pid)
    return now is not None and not now.zombie and now.started == earlier.started


def words(pid: int) -> list[str]:
    """Return the command line; empty if the process is gone or not readable."""
    return _strings(pid, "cmdline")


def environment(pid: int) -> dict[str, str]:
    """Return the initial environment; empty if the process is gone or not readable."""
    pairs = (text.partition("=") for text in _strings(pid, "environ"))
    return {name: value for name, equals, value in pairs if equals}


def memory_of_family(root: Process) -> int | None:
    """Return the bytes that it and its descendants hold, shared pages once; None if unreadable."""
    held = 0
    for member in with_descendants([root]):
        try:
            lines = (_PROC / str(member.pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:  # ended, or of another user
            if member.pid == root.pid:
                return None
            continue
        held += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return held


def name_of(pid: int) -> str:
    """Return the short name, as `ps` shows it; empty if the process is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def directory(pid: int) -> str:
    """Return the working directory; empty if the process is gone or not readable."""
    try:
        return str((_PROC / str(pid) / "cwd").readlink())
    except OSError:
        return ""


def find_listener(port: int) -> Process | None:
    """Return the process that listens on this TCP port; the oldest if several share it."""
    return find_owner(*(sock.inode for sock in listening_sockets(port)))


def find_owner(*inodes: int) -> Process | None:
    """Return the process that has one of these sockets; the oldest if several share it; None: not visible."""
    if not inodes:
        return None
    owners = (owner for owner in processes() if not (sockets(owner.pid) or set()).isdisjoint(inodes))
    return min(owners, key=lambda owner: owner.started, default=None)


def listening_user(port: int) -> int | None:
    """Return the user id that listens on this TCP port, even if its process is not visible; None: none."""
    return next((sock.user for sock in listening_sockets(port)), None)


def sockets(pid: int) -> set[int] | None:
    """Return the inodes of the sockets of a process; None: it is gone, or this user may not look."""
    links = _open_files(pid)
    return None if links is None else {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def user_of(pid: int) -> set[int]:
    """Return the user of a process; empty if it is gone."""
    try:
        return {(_PROC / str(pid)).stat().st_uid}
    except OSError:
        return set()


def with_descendants(roots: Iterable[Process]) -> list[Process]:
    """Return these processes and all their descendants."""
    children: dict[int, list[Process]] = {}
    for running in processes():
        children.setdefault(running.parent, []).append(running)
    family: dict[int, Process] = {}
    new = list(roots)
    while new:
        member = new.pop()
        if member.pid not in family:
            family[member.pid] = member
            new += children.get(member.pid, [])
    return list(family.values())


def has_open(root: Process, pattern: str) -> bool:
    """Return whether the process or a descendant has a file open whose path matches, as far as is visible."""
    return any(
        fnmatch(path, pattern)
        for member in with_descendants([root])
        for path in _open_files(member.pid) or ()
    )


def descends_from(pid: int, root: int) -> bool | None:
    """Return whether it is the process `root` or a descendant; None: one of them is not visible."""
    if process(root) is None:
        return None
    while pid != root:
        ancestor = process(pid)
        if ancestor is None:
            return None
        if ancestor.parent == 0:
            return False
        pid = ancestor.parent
    return True


def _strings(pid: int, name: str) -> list[str]:
    try:
        raw = (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return []
    text = raw.decode("utf-8", "surrogateescape")
    return text.removesuffix("\0").split("\0") if text else []


def listening_sockets(port: int) -> Iterator[ListeningSocket]:
    """Yield the sockets that listen on this TCP port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for line in lines:
            fields = line.split()
            host, _, digits = fields[1].partition(":")
            if fields[3] == _LISTEN and int(digits, 16) == port:
                yield ListeningSocket(inode=int(fields[9]), user=int(fields[7]), host=host)


def _open_files(pid: int) -> list[str] | None:
    """The paths of what a process has open; None: it is gone, or this user may not look."""
    try:
        return [_target(link) for link in (_PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return None


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
