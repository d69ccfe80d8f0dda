"""Apply files to a running Envoy one after the other, and roll all of them back if one is refused."""

from dataclasses import dataclass, field

from actuators.envoy import resources
from actuators.envoy.admin import Admin
from actuators.envoy.fence import Writer
from actuators.envoy.files import Version, XdsFiles
from actuators.envoy.process import EnvoyProcess
from actuators.envoy.split import Json
from agent.domain.errors import ActError


@dataclass(slots=True, kw_only=True)
class ConfigExchange:
    """The exchange of one effect, whose number the files carry."""

    files: XdsFiles
    admin: Admin
    process: EnvoyProcess
    writer: Writer
    number: int
    within_s: float
    _before: list[tuple[str, bytes | None]] = field(default_factory=list)

    def version(self) -> Version:
        return self.files.next_version(epoch=self.writer.epoch, number=self.number)

    async def place(self, kind: str, content: bytes) -> None:
        """Write files before Envoy runs. Raises ActError, FencedError."""
        self._before.append((kind, await self.files.put(kind, content, writer=self.writer)))

    async def give(self, kind: str, version: str, content: bytes) -> None:
        """Write a file and wait until it is in force. Raises ActError with Envoy's reason, FencedError."""
        before = await self.admin.in_force(kind)
        if before is None:
            raise ActError(f"Envoy runs, but does not answer on {self.admin.socket}")
        written = self.process.log_size()
        await self.place(kind, content)
        await self._confirm(kind, version, refused=before.refused, written=written)

    async def _confirm(self, kind: str, version: str, *, refused: int, written: int) -> None:
        why = await self.admin.wait(kind, version, refused=refused, within_s=self.within_s)
        if why:
            reason = self.process.refusal_since(written)
            raise ActError(f"{why}: {reason}" if reason else why, self.process.log_since(written))

    async def listener(self, version: str, content: bytes) -> None:
        path = self.files.path("lds")
        if path.exists() and path.read_bytes() == content:
            await self._confirm("lds", version, refused=0, written=0)
        else:
            await self.give("lds", version, content)

    async def clusters(self, wanted: dict[str, Json]) -> None:
        """None only where the split is closed: Envoy would drop every request."""
        found = self.files.read("cds") if self.files.is_usable("cds") else None
        if found and {cluster.get("name"): cluster for cluster in found[1]} == wanted:
            seen = await self.admin.in_force("cds")
            if seen and seen.version == found[0] and not seen.warming:
                return
        version = str(self.version())
        await self.give("cds", version, resources.response(version, *wanted.values()))

    async def routes(self, resource: Json) -> None:
        version = str(self.version())
        await self.give("rds", version, resources.response(version, resource))

    async def roll_back(self) -> None:
        """Raises FencedError when a newer daemon has written meanwhile: then nothing is ours to restore."""
        while self._before:
            kind, content = self._before.pop()
            await self.files.put(kind, content, writer=self.writer)
