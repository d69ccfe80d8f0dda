"""Apply files to a running Envoy one after the other, and roll all of them back if one is refused."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from flettner.actuators.envoy import resources
from flettner.actuators.envoy.fence import Writer
from flettner.actuators.envoy.files import Version, XdsFiles
from flettner.actuators.envoy.process import EnvoyProcess
from flettner.actuators.envoy.reported_config import ReportedConfig, digests
from flettner.actuators.envoy.split import Json
from flettner.agent.domain.errors import ActError


@dataclass(slots=True, kw_only=True)
class ConfigExchange:
    """The exchange of one effect, whose number the files carry."""

    files: XdsFiles
    reported: ReportedConfig
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

    async def give(self, kind: str, *wanted: Json, may_warm: AbstractSet[str] = frozenset()) -> None:
        """Write a file and wait until it is in force. Raises ActError with Envoy's reason, FencedError.

        `may_warm`: clusters whose addresses Envoy may still look up then.
        """
        refused = await self.reported.refused(kind)
        if refused is None:
            raise ActError(f"Envoy runs, but does not answer on {self.reported.admin.socket}")
        written = self.process.log_size()
        version = str(self.version())
        await self.place(kind, resources.response(version, *wanted))
        expected = digests(wanted) if kind != "rds" else {self.files.target: version}
        why = await self.reported.wait(
            kind, expected, refused=refused, within_s=self.within_s, may_warm=may_warm
        )
        if why:
            reason = self.process.refusal_since(written)
            raise ActError(f"{why}: {reason}" if reason else why, self.process.log_since(written))

    async def ensure(self, kind: str, *wanted: Json, may_warm: AbstractSet[str] = frozenset()) -> None:
        """Give clusters or the listener, unless they are in force."""
        response = self.files.read(kind) if self.files.is_usable(kind) else None
        written = response is not None and _by_name(response[1]) == _by_name(wanted)
        if not written or await self.reported.in_force(kind) != digests(wanted):
            await self.give(kind, *wanted, may_warm=may_warm)

    async def roll_back(self) -> None:
        """Raises FencedError when a newer daemon has written meanwhile: then nothing is ours to restore."""
        while self._before:
            kind, content = self._before.pop()
            await self.files.put(kind, content, writer=self.writer)


def _by_name(resources: Iterable[Json]) -> dict[object, Json]:
    return {resource.get("name"): resource for resource in resources}
