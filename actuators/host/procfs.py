"""Read Linux's table of processes: who runs, since when, with which words and marks, who listens where."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"  # state in /proc/net/tcp


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One incarnation: `started` (clock ticks since boot) tells it from a later one with the same number."""

    pid: int
    started: int
    parent: int
    group: int
    session: int
    zombie: bool


def process(pid: int) -> Process | None:
    """None: there is none of this number."""
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


def processes() -> Iterator[Process]:
    """All that run. Zombies do not: nothing of them is left but their exit code."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (found := process(int(entry.name))) and not found.zombie:
            yield found


def runs(known: Process) -> bool:
    """Whether this very process runs still."""
    now = process(known.pid)
    return now is not None and not now.zombie and now.started == known.started


def words(pid: int) -> list[str]:
    """Its command line; empty when it is gone or not ours to see."""
    return _strings(pid, "cmdline")


def environment(pid: int) -> dict[str, str]:
    """What it was started with; empty when it is gone or not ours to see."""
    pairs = (text.partition("=") for text in _strings(pid, "environ"))
    return {name: value for name, equals, value in pairs if equals}


def directory(pid: int) -> str:
    """Where it works; empty when it is gone or not ours to see."""
    try:
        return str((_PROC / str(pid) / "cwd").readlink())
    except OSError:
        return ""


def listener(port: int) -> Process | None:
    """The process that listens on this TCP port, the oldest where several share it."""
    sockets = {f"socket:[{inode}]" for inode, _ in _listening(port)}
    if not sockets:
        return None
    owners = (one for one in processes() if _holds(one.pid, sockets))
    return min(owners, key=lambda one: one.started, default=None)


def listening_user(port: int) -> int | None:
    """Who owns a socket that listens on this TCP port, its process seen or not; None: nobody listens."""
    return next((user for _, user in _listening(port)), None)


def with_descendants(roots: Iterable[Process]) -> list[Process]:
    """These processes, their children, the children of those."""
    children: dict[int, list[Process]] = {}
    for one in processes():
        children.setdefault(one.parent, []).append(one)
    family: dict[int, Process] = {}
    new = list(roots)
    while new:
        one = new.pop()
        if one.pid not in family:
            family[one.pid] = one
            new += children.get(one.pid, [])
    return list(family.values())


def _strings(pid: int, name: str) -> list[str]:
    try:
        raw = (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return []
    text = raw.decode("utf-8", "surrogateescape")
    return text.removesuffix("\0").split("\0") if text else []


def _listening(port: int) -> Iterator[tuple[str, int]]:
    """Inode and user of each such socket."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # no IPv6 here
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9], int(fields[7])


def _holds(pid: int, sockets: set[str]) -> bool:
    try:
        return any(_target(link) in sockets for link in (_PROC / str(pid) / "fd").iterdir())
    except OSError:  # gone, or somebody else's
        return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
