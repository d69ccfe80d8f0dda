"""An Envoy of one target alone, as flettner ran before one Envoy served all targets of a daemon.

After an upgrade it serves until the common Envoy listens on the same port. Then it accepts no more
connections, finishes its open ones, and ends. Its records of requests are not read meanwhile.
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.fence import Fence, Writer
from flettner.actuators.envoy.process import EnvoyProcess
from flettner.actuators.envoy.resources import address_of
from flettner.actuators.envoy.response_file import BrokenFileError, read_response
from flettner.actuators.envoy.split import carried_by
from flettner.agent.domain.ports import TrafficSeen

_OPEN = "http.ingress.downstream_cx_active"


@dataclass(frozen=True, slots=True)
class FormerEnvoy:
    """`home`: its folder, which goes when it has ended."""

    home: Path

    @property
    def _process(self) -> EnvoyProcess:
        return EnvoyProcess(self.home)

    @property
    def _admin(self) -> Admin:
        return Admin(self.home / "admin.sock")

    def exists(self) -> bool:
        return (self.home / "xds").exists()

    def serves(self) -> bool:
        return self.exists() and self._process.find() is not None

    async def observe(self) -> TrafficSeen | None:
        """None without one. Its lease is not renewed."""
        if not self.exists():
            return None
        try:
            routes, clusters = read_response(self._xds("rds")), read_response(self._xds("cds"))
            carried = carried_by(routes[1]) if routes else None
            addresses = (
                {str(cluster["name"]): address_of(cluster) for cluster in clusters[1]} if clusters else {}
            )
        except (BrokenFileError, ValueError, KeyError, TypeError, IndexError):
            carried, addresses = None, {}
        newest = Fence(self.home / "lock").newest().epoch
        return TrafficSeen(
            weights=carried.weights if carried else {},
            addresses=addresses,
            epoch=max(newest, carried.epoch if carried else 0),
            leased=carried.leased if carried else None,
            listening=self._process.find() is not None,
        )

    def _xds(self, kind: str) -> Path:
        return self.home / "xds" / f"{kind}.json"

    async def open_requests(self, server: str) -> int | None:
        """None if it runs and does not answer."""
        return await self._admin.open_requests(server) if self.serves() else 0

    async def claim(self, writer: Writer) -> None:
        """Exclude older daemons, which know nothing of the common Envoy. Raises ActError, FencedError."""
        if self.exists():
            await asyncio.to_thread(self._mark, writer)

    def _mark(self, writer: Writer) -> None:
        with Fence(self.home / "lock").hold(writer):
            pass

    async def retire(self) -> None:
        """Let it finish, and end it once it has no connection."""
        if not self.exists():
            return
        if self._process.find() is not None:
            stats = await self._admin.stats(rf"^{_OPEN}$") if await self._admin.drain() else None
            if stats is None or stats.get(_OPEN):
                return
            await self._process.kill()
        await asyncio.to_thread(shutil.rmtree, self.home, ignore_errors=True)
