"""What Envoy reports of one target: its clusters, its listener and its routes in force."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from actuators.envoy.admin import Admin
from actuators.envoy.resources import digest_of
from actuators.envoy.split import Json

REFUSED_S = 0.5  # after Envoy has counted a refusal, which may be that of another target
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.1
_STATS = {"cds": "cluster_manager.cds", "lds": "listener_manager.lds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """Envoy's state of one kind of the target's resources.

    `resources`: by name the digest, of routes the version. `refused` counts refused updates: those of routes
    of this target, others of any. `error`: why Envoy refused the target's listener.
    """

    resources: Mapping[str, str]
    refused: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReportedConfig:
    """The target's part of Envoy's configuration. Each result is None if Envoy does not answer."""

    admin: Admin
    target: str

    async def in_force(self, kind: str) -> InForce | None:
        """`kind`: cds, rds or lds."""
        prefix = _STATS.get(kind, f"http.ingress.rds.{self.target}")
        stats = await self.admin.stats(
            rf"^{re.escape(prefix)}\.(version_text|update_failure|update_rejected)$"
        )
        if stats is None:
            return None
        refused = sum(int(stats.get(f"{prefix}.{name}", 0)) for name in ("update_failure", "update_rejected"))
        if kind == "rds":
            version = str(stats.get(f"{prefix}.version_text", ""))
            return InForce(resources={self.target: version}, refused=refused)
        if kind == "lds":
            return await self._listener(refused)
        entries = await self._dump("dynamic_active_clusters")
        if entries is None:
            return None
        return InForce(resources=digests(entry["cluster"] for entry in entries), refused=refused)

    async def _listener(self, refused: int) -> InForce | None:
        dumped = await self._dump("dynamic_listeners")
        if dumped is None:
            return None
        active = [entry["active_state"]["listener"] for entry in dumped if "active_state" in entry]
        errors = [entry["error_state"].get("details", "") for entry in dumped if "error_state" in entry]
        return InForce(resources=digests(active), refused=refused, error="; ".join(errors))

    async def _dump(self, resource: str) -> Sequence[Json] | None:
        return await self.admin.dump(resource, name=f"^{re.escape(self.target)}(/.*)?$")

    async def listening(self) -> bool:
        seen = await self.in_force("lds")
        return bool(seen and seen.resources)

    async def resources(self, kind: str) -> tuple[Json, ...]:
        """The resources in force of kind cds or rds; empty if Envoy does not report them."""
        of, key = {
            "cds": ("dynamic_active_clusters", "cluster"),
            "rds": ("dynamic_route_configs", "route_config"),
        }[kind]
        return tuple(entry[key] for entry in await self._dump(of) or () if key in entry)

    async def wait(self, kind: str, wanted: Mapping[str, str], *, refused: int, within_s: float) -> str:
        """Wait until `wanted` is in force; return the reason if it is not, else an empty text.

        A refusal may be that of another target or of another file read at the same rename, so it counts only
        if the wanted resources do not follow.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        refused_s, pause_s = None, 0.01
        seen = None
        while loop.time() < end_s:
            seen = await self.in_force(kind)
            if seen and seen.resources == wanted:
                return ""
            if seen and seen.refused > refused and refused_s is None:
                refused_s = loop.time()
            if (
                refused_s is not None
                and loop.time() > refused_s + REFUSED_S
                and not await self._warms(wanted)
            ):
                return f"Envoy refused {kind} of {self.target}" + (
                    f": {seen.error}" if seen and seen.error else ""
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        has = dict(seen.resources) if seen else "no answer"
        return f"Envoy did not confirm {kind} of {self.target} in {within_s:g} s: it has {has}"

    async def _warms(self, wanted: Mapping[str, str]) -> bool:
        """True if Envoy has accepted these clusters, and looks up the address of some."""
        warming = digests(entry["cluster"] for entry in await self._dump("dynamic_warming_clusters") or ())
        return any(wanted.get(name) == digest for name, digest in warming.items())


def digests(resources: Iterable[Json]) -> dict[str, str]:
    """By name."""
    return {str(resource["name"]): digest_of(resource) for resource in resources}
