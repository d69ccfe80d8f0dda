"""The files that Envoy reads: replaced as a unit, by one writer at a time, never by an older daemon."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from actuators.envoy.fence import Fence, Writer
from actuators.envoy.split import CarriedWeights, Json, carried_by
from agent.domain.errors import ActError
from agent.io.bounded import parse_json


class BrokenFileError(ActError):
    """A file has content that trimtab did not write."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Version:
    """`version_info`: the writer, the effect, and the serial number of the write."""

    epoch: int = 0
    number: int = 0
    serial: int = 0

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Raises ValueError."""
        epoch, number, serial = (int(part) for part in text.split("."))
        return cls(epoch=epoch, number=number, serial=serial)

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}.{self.serial}"


@dataclass(frozen=True, slots=True)
class XdsFiles:
    home: Path

    def path(self, kind: str) -> Path:
        """`kind`: cds (clusters), rds (routes) or lds (the listener)."""
        return self.home / "xds" / f"{kind}.json"

    def exist(self) -> bool:
        return any(self.path(kind).exists() for kind in ("cds", "rds", "lds"))

    def read(self, kind: str) -> tuple[str, tuple[Json, ...]] | None:
        """version_info and resources; None without such a file. Raises BrokenFileError."""
        path = self.path(kind)
        try:
            content = parse_json(path.read_bytes())
            return str(content["version_info"]), tuple(dict(resource) for resource in content["resources"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BrokenFileError(f"{path} cannot be read ({error!r}); the next route replaces it") from error

    def is_usable(self, kind: str) -> bool:
        try:
            return self.read(kind) is not None
        except BrokenFileError:
            return False

    def carried(self) -> CarriedWeights | None:
        """Raises BrokenFileError."""
        found = self.read("rds")
        try:
            return carried_by(found[1]) if found else None
        except ValueError as error:
            raise BrokenFileError(f"{self.path('rds')}: {error}; the next route replaces it") from error

    def clusters(self) -> dict[str, Json]:
        """By name. Raises BrokenFileError."""
        found = self.read("cds")
        try:
            return {str(cluster["name"]): cluster for cluster in found[1]} if found else {}
        except KeyError as error:
            raise BrokenFileError(f"{self.path('cds')} has a cluster without a name") from error

    def versions(self) -> list[Version]:
        """Versions of the readable files."""
        versions = []
        for kind in ("cds", "rds"):
            try:
                found = self.read(kind)
                versions += [Version.parse(found[0])] if found else []
            except (BrokenFileError, ValueError):
                continue  # its writer is unknown; the other file is still checked
        return versions

    def next_version(self, *, epoch: int, number: int) -> Version:
        """A version that Envoy never had, so that its answer refers to this write."""
        serial = max((version.serial for version in self.versions()), default=0)
        return Version(epoch=epoch, number=number, serial=serial + 1)

    def newest(self) -> Writer:
        """The newest writer according to the lock and the files. Raises ActError."""
        marked = self._fence.newest()
        epoch = max((version.epoch for version in self.versions()), default=0)
        return Writer(epoch=epoch) if epoch > marked.epoch else marked

    @property
    def _fence(self) -> Fence:
        return Fence(self.home / "lock")

    @contextmanager
    def alone(self, writer: Writer) -> Iterator[None]:
        """Exclude other writers, and older daemons from now on. Raises ActError, FencedError."""
        try:
            with self._fence.hold(writer):
                writer.refuse_after(self.newest())
                yield
        except OSError as error:
            raise ActError(f"cannot write in {self.home}: {error}") from error

    async def put(self, kind: str, content: bytes | None, *, writer: Writer) -> bytes | None:
        """Replace a file, or remove it (None); return the old content. Raises ActError, FencedError."""
        return await asyncio.to_thread(
            self._put, kind, content, writer
        )  # ends, and so does its lock, if cancelled

    def _put(self, kind: str, content: bytes | None, writer: Writer) -> bytes | None:
        path = self.path(kind)
        with self.alone(writer):
            path.parent.mkdir(exist_ok=True, mode=0o700)
            previous = path.read_bytes() if path.exists() else None
            if content is None:
                path.unlink(missing_ok=True)
            else:
                _replace(path, content)
        return previous


def write_s(folder: Path) -> float:
    """Seconds until a file of a few kilobytes is on disk; 0.0 if the disk is full."""
    probe = folder / "trimtab-write"
    begun_s = time.monotonic()
    try:
        _replace(probe, bytes(8192))
        return time.monotonic() - begun_s
    except OSError:
        return 0.0  # a daemon that starts on a full disk waits for it
    finally:
        for left in (probe, _draft(probe)):
            left.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}")


def _replace(path: Path, content: bytes) -> None:
    """Replace by rename: Envoy never reads half a file, not even after a power cut."""
    fresh = _draft(path)
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
