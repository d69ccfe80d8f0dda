"""A target's part of Envoy's files: replaced by one daemon at a time, never by an older one."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from flettner.actuators.envoy import union
from flettner.actuators.envoy.fence import Fence, Writer
from flettner.actuators.envoy.resources import server_of
from flettner.actuators.envoy.response_file import BrokenFileError, read_response, replace_response
from flettner.actuators.envoy.split import CarriedWeights, Json, carried_by
from flettner.agent.domain.errors import ActError

KINDS = ("cds", "rds", "lds")

_T = TypeVar("_T")

_SHARED = ThreadPoolExecutor(1, thread_name_prefix="envoy")
"""What the targets share is changed by one thread: a renewal of a lease does not wait behind it."""


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
    """The part of `target` in `home`, the folder of the Envoy of all targets."""

    home: Path
    target: str

    def path(self, kind: str) -> Path:
        """`kind`: cds (clusters), rds (routes) or lds (the listener)."""
        return union.part(self.home, self.target, kind)

    def exist(self) -> bool:
        return any(self.path(kind).exists() for kind in KINDS)

    def read(self, kind: str) -> tuple[str, tuple[Json, ...]] | None:
        """version_info and resources; None without such a file. Raises BrokenFileError."""
        return read_response(self.path(kind))

    def is_usable(self, kind: str) -> bool:
        try:
            return self.read(kind) is not None
        except BrokenFileError:
            return False

    def carried(self) -> CarriedWeights | None:
        """Raises BrokenFileError."""
        response = self.read("rds")
        try:
            return carried_by(response[1]) if response else None
        except ValueError as error:
            raise BrokenFileError(f"{self.path('rds')}: {error}; the next route replaces it") from error

    def clusters(self) -> dict[str, Json]:
        """By the server's name. Raises BrokenFileError."""
        response = self.read("cds")
        try:
            return {server_of(cluster): cluster for cluster in response[1]} if response else {}
        except KeyError as error:
            raise BrokenFileError(f"{self.path('cds')} has a cluster without a name") from error

    def versions(self) -> list[Version]:
        """Versions of the readable files."""
        versions = []
        for kind in KINDS:
            try:
                response = self.read(kind)
                versions += [Version.parse(response[0])] if response else []
            except (BrokenFileError, ValueError):
                continue  # its writer is unknown; the other files are still checked
        return versions

    def next_version(self, *, epoch: int, number: int) -> Version:
        """A version that Envoy never had, so that its answer refers to this write."""
        serial = max((version.serial for version in self.versions()), default=0)
        return Version(epoch=epoch, number=number, serial=serial + 1)

    def written_by(self) -> int:
        """The newest epoch in the target's files; 0 without one."""
        return max((version.epoch for version in self.versions()), default=0)

    def newest(self) -> Writer:
        """The newest writer according to the lock and the files. Raises ActError."""
        marked = self._fence.newest()
        epoch = self.written_by()
        return Writer(epoch=epoch) if epoch > marked.epoch else marked

    @property
    def _fence(self) -> Fence:
        return Fence(self.home / "lock")

    @contextmanager
    def alone(self, writer: Writer) -> Iterator[None]:
        """Exclude other daemons, and older ones from now on. Raises ActError, FencedError."""
        try:
            with self._fence.hold(writer):
                writer.refuse_after(self.newest())
                yield
        except OSError as error:
            raise ActError(f"cannot write in {self.home}: {error}") from error

    async def claim(self, writer: Writer) -> None:
        """Exclude older daemons, and mend what one that was killed left. Raises ActError, FencedError."""
        await self.shared(writer, self.unite)

    def unite(self) -> None:
        """For a thread that is `alone`."""
        for kind in union.KINDS:
            union.unite(self.home, kind)

    async def shared(self, writer: Writer, act: Callable[[], _T]) -> _T:
        """Run in the one thread for what targets share; it ends, and releases the lock, if cancelled."""

        def acted() -> _T:
            with self.alone(writer):
                return act()

        return await asyncio.get_running_loop().run_in_executor(_SHARED, acted)

    async def put(self, kind: str, content: bytes | None, *, writer: Writer) -> bytes | None:
        """Replace a file, or remove it (None); return the old content. Raises ActError, FencedError."""
        put = partial(self._put, kind, content, writer)
        if kind in union.KINDS:
            return await asyncio.get_running_loop().run_in_executor(_SHARED, put)
        return await asyncio.to_thread(put)  # ends, and so does its lock, if cancelled

    def _put(self, kind: str, content: bytes | None, writer: Writer) -> bytes | None:
        path = self.path(kind)
        with self.alone(writer):
            path.parent.mkdir(exist_ok=True, parents=True, mode=0o700)
            previous = path.read_bytes() if path.exists() else None
            if content is None:
                path.unlink(missing_ok=True)
            else:
                replace_response(path, content)
            if kind in union.KINDS:
                union.unite(self.home, kind)
        return previous
