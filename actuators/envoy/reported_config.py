"""What Envoy reports of one target: its clusters, its listener and its routes in force."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.resources import digest_of
from flettner.actuators.envoy.split import Json

REFUSED_S = 0.5  # before a counted refusal is taken for that of this write
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.1
_STATS = {"cds": "cluster_manager.cds", "lds": "listener_manager.lds"}


@dataclass(frozen=True, slots=True)
class ReportedConfig:
    """The target's part of Envoy's configuration. Each result is None if Envoy does not answer."""

    admin: Admin
    target: str

    async def in_force(self, kind: str) -> Mapping[str, str] | None:
        """By name the digest of clusters (cds) and of the listener (lds), or the version of routes (rds)."""
        if kind == "rds":
            name = f"{self._stats(kind)}.version_text"
            stats = await self.admin.stats(f"^{re.escape(name)}$", "TextReadouts")
            return None if stats is None else {self.target: str(stats.get(name, ""))}
        if kind == "cds":
            dumped = await self._dump("dynamic_active_clusters")
            return None if dumped is None else digests(entry["cluster"] for entry in dumped)
        dumped = await self._dump("dynamic_listeners")
        active = (entry["active_state"]["listener"] for entry in dumped or () if "active_state" in entry)
        return None if dumped is None else digests(active)

    async def refused(self, kind: str) -> int | None:
        """How many updates Envoy has refused: of routes those of the target, else those of any."""
        names = rf"^{re.escape(self._stats(kind))}\.(update_failure|update_rejected)$"
        stats = await self.admin.stats(names, "Counters")
        return None if stats is None else sum(int(count) for count in stats.values())

    def _stats(self, kind: str) -> str:
        return _STATS.get(kind, f"http.ingress.rds.{self.target}")

    async def _dump(self, resource: str) -> Sequence[Json] | None:
        return await self.admin.dump(resource, name=f"^{re.escape(self.target)}(/.*)?$")

    async def listening(self) -> bool:
        return bool(await self.in_force("lds"))

    async def resources(self, kind: str) -> tuple[Json, ...]:
        """The resources in force of kind cds or rds; empty if Envoy does not report them."""
        of, key = {
            "cds": ("dynamic_active_clusters", "cluster"),
            "rds": ("dynamic_route_configs", "route_config"),
        }[kind]
        return tuple(entry[key] for entry in await self._dump(of) or () if key in entry)

    async def wait(
        self,
        kind: str,
        wanted: Mapping[str, str],
        *,
        refused: int,
        within_s: float,
        may_warm: AbstractSet[str] = frozenset(),
    ) -> str:
        """Wait until `wanted` is in force; return the reason if it is not, else an empty text.

        Of the clusters in `may_warm` it is enough that Envoy has accepted them, and looks up their addresses.
        A refusal may be that of another target or of another file read at the same rename, so it counts only
        if the wanted resources do not follow.
        """
        loop = asyncio.get_running_loop()
        begun_s, pause_s = loop.time(), _FIRST_PAUSE_S
        seen = None
        while loop.time() < begun_s + within_s:
            seen = await self.in_force(kind)
            if seen == wanted:
                return ""
            if may_warm and seen is not None:
                warming = await self._warming()
                seen = {**{name: warming[name] for name in may_warm & warming.keys()}, **seen}
                if seen == wanted:
                    return ""
            if loop.time() > begun_s + REFUSED_S and await self._has_refused(kind, wanted, refused):
                return f"Envoy refused {kind} of {self.target}"
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        has = "no answer" if seen is None else dict(seen)
        return f"Envoy did not confirm {kind} of {self.target} in {within_s:g} s: it has {has}"

    async def _has_refused(self, kind: str, wanted: Mapping[str, str], refused: int) -> bool:
        return (await self.refused(kind) or 0) > refused and not await self._warms(wanted)

    async def _warms(self, wanted: Mapping[str, str]) -> bool:
        """True if Envoy has accepted these clusters, and looks up the address of some."""
        warming = await self._warming()
        return any(wanted.get(name) == digest for name, digest in warming.items())

    async def _warming(self) -> Mapping[str, str]:
        return digests(entry["cluster"] for entry in await self._dump("dynamic_warming_clusters") or ())


def digests(resources: Iterable[Json]) -> dict[str, str]:
    """By name."""
    return {str(resource["name"]): digest_of(resource) for resource in resources}
