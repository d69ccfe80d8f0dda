"""The control groups of a process: the memory that they still let it take, and the container that they are
of."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC, _ROOT = Path("/proc"), Path("/sys/fs/cgroup")
_CONTAINER = re.compile(r"\b[0-9a-f]{64}\b")  # docker/ID or docker-ID.scope
_NO_LIMIT = 1 << 62  # version 1 writes the largest number of pages for none


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupRoom:
    """The memory of a control group, in bytes. `limit`: that of the group that leaves the least."""

    free: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The file names of a cgroup version. `cache`: memory that the kernel takes back at once."""

    folder: str
    limit: str
    used: str
    cache: str


_V1 = _Names(
    folder="memory", limit="memory.limit_in_bytes", used="memory.usage_in_bytes", cache="total_inactive_file"
)
_V2 = _Names(folder="", limit="memory.max", used="memory.current", cache="inactive_file")


def find_room(pid: int | str = "self", *, proc: Path = _PROC, root: Path = _ROOT) -> CgroupRoom | None:
    """Return what the tightest of its groups leaves; None: none of them has a limit."""
    rooms = []
    with suppress(OSError):
        for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in {"", "memory"}:
                names = _V1 if controllers else _V2
                group = root / names.folder / path.lstrip("/")
                rooms += [
                    _room(folder, names) for folder in (group, *group.parents) if folder.is_relative_to(root)
                ]
    return min((room for room in rooms if room is not None), key=lambda room: room.free, default=None)


def find_container_of(pid: int, *, proc: Path = _PROC) -> str:
    """Return the id of the container that a process runs in; empty: in none, or that cannot be seen."""
    with suppress(OSError):
        if match := _CONTAINER.search((proc / str(pid) / "cgroup").read_text(encoding="utf-8")):
            return match[0]
    return ""


def _room(group: Path, names: _Names) -> CgroupRoom | None:
    with suppress(OSError, ValueError):  # no such file, or "max"
        limit = int((group / names.limit).read_text(encoding="ascii"))
        used = int((group / names.used).read_text(encoding="ascii"))
        for line in (group / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == names.cache:
                used -= int(value)
        return CgroupRoom(free=max(0, limit - used), limit=limit) if limit < _NO_LIMIT else None
    return None
