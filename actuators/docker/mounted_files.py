"""The mounts of a container, and the files in them that this host can read.

A container controls what lies in its mounts: endless files, pipes without a writer, links that lead out. Only
regular text files of limited size inside the mounted folder are read.
"""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from flettner.primitives.files import read_bounded

Json = dict[str, Any]

LARGEST_FILE = 2**20  # bytes; flags and a key


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    type: str  # bind, volume, tmpfs, …
    name: str  # of a volume
    source: str  # path on the host
    destination: str  # path in the container
    writable: bool = True
    propagation: str = ""

    @classmethod
    def parse(cls, mount: Json) -> Self:
        return cls(
            type=str(mount.get("Type") or ""),
            name=str(mount.get("Name") or ""),
            source=str(mount.get("Source") or ""),
            destination=str(mount["Destination"]),
            writable=bool(mount.get("RW", True)),
            propagation=str(mount.get("Propagation") or ""),
        )


def mounted_files(mounts: Sequence[Mount], working_dir: str) -> Callable[[str], str | None]:
    """Return a reader of files of the container that lie in a folder mounted from this host.

    Relative paths start at `working_dir`. The reader returns None for a file that it cannot read.
    """
    deepest_first = sorted(mounts, key=lambda mount: -len(mount.destination))

    def read(path: str) -> str | None:
        wanted = PurePosixPath(working_dir or "/", path)
        for mount in deepest_first:
            if mount.source and wanted.is_relative_to(mount.destination):
                with suppress(OSError, ValueError):
                    below = wanted.relative_to(mount.destination)
                    return _read_text(Path(mount.source, below), Path(mount.source))
                return None
        return None

    return read


def find_socket(mounts: Sequence[Mount], path: Path) -> Path | None:
    """Return the host's path of a socket of the container; None without a mount, or through a link."""
    for mount in sorted(mounts, key=lambda mount: -len(mount.destination)):
        if mount.source and path.is_relative_to(mount.destination):
            with suppress(OSError):
                source = Path(mount.source).resolve(strict=True)
                socket = source / path.relative_to(mount.destination)
                if socket.resolve(strict=True) == socket and stat.S_ISSOCK(socket.stat().st_mode):
                    return socket
            return None
    return None


def _read_text(path: Path, folder: Path) -> str:
    """Raises OSError, also if it is too large, and ValueError if it is no regular text file in the folder."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is not in {folder}")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no regular file")
        return read_bounded(file, LARGEST_FILE).decode("utf-8")
