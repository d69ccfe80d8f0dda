"""Client of Envoy's admin interface on its unix socket."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from actuators.envoy.split import Json
from agent.io.bounded import parse_json, read_body

STATS = {
    "cds": "cluster_manager.cds",
    "rds": "http.ingress.rds.main",
    "lds": "listener_manager.lds",
}
"""Where Envoy counts what it did with each kind of file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """Envoy's state of one kind of file. `refused` counts unreadable and rejected updates."""

    version: str
    refused: int
    warming: int


@dataclass(frozen=True, slots=True)
class Admin:
    """Each result is None if Envoy does not answer within `timeout_s`."""

    socket: Path
    timeout_s: float = 2.0

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.UnixConnector(str(self.socket))
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=self.timeout_s))

    async def _get(self, path: str, **query: str) -> Json | None:
        try:
            async with (
                self._session() as session,
                session.get(f"http://envoy{path}", params=query) as answer,
            ):
                body = parse_json(await read_body(answer))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None
        return body if isinstance(body, dict) else None

    async def stats(self, pattern: str) -> Mapping[str, int | str] | None:
        """Counters, gauges and texts whose names match the regular expression."""
        answer = await self._get("/stats", format="json", filter=pattern)
        if answer is None:
            return None
        return {stat["name"]: stat["value"] for stat in answer.get("stats", ()) if "name" in stat}

    async def in_force(self, kind: str) -> InForce | None:
        """`kind`: cds, rds or lds."""
        prefix = STATS[kind]
        names = "version_text|update_failure|update_rejected"
        stats = await self.stats(rf"^{prefix}\.({names})$|^cluster_manager\.warming_clusters$")
        if stats is None:
            return None
        return InForce(
            version=str(stats.get(f"{prefix}.version_text", "")),
            refused=int(stats.get(f"{prefix}.update_failure", 0))
            + int(stats.get(f"{prefix}.update_rejected", 0)),
            warming=int(stats.get("cluster_manager.warming_clusters", 0)) if kind == "cds" else 0,
        )

    async def drain(self) -> bool:
        """Accept no more connections; each open one ends with its request. False if Envoy does not answer."""
        try:
            async with (
                self._session() as session,
                session.post("http://envoy/drain_listeners") as answer,
            ):
                return answer.ok
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def listening(self) -> bool:
        stats = await self.stats(r"^listener_manager\.total_listeners_active$")
        return bool(stats) and any(int(value) > 0 for value in (stats or {}).values())

    async def resources(self, kind: str) -> tuple[Json, ...]:
        """The resources in force of kind cds or rds; empty if Envoy does not report them."""
        of, key = {
            "cds": ("dynamic_active_clusters", "cluster"),
            "rds": ("dynamic_route_configs", "route_config"),
        }[kind]
        answer = await self._get("/config_dump", resource=of)
        return tuple(entry[key] for entry in (answer or {}).get("configs", ()) if key in entry)

    async def wait(self, kind: str, version: str, *, refused: int, within_s: float) -> str:
        """Wait until `version` is in force; return the reason if it is not, else an empty text.

        A refusal may belong to another file read at the same rename, so it counts only if the version does
        not follow.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        refused_s = None
        seen = None
        while loop.time() < end_s:
            seen = await self.in_force(kind)
            if seen and seen.version == version and not seen.warming:
                return ""
            if seen and seen.refused > refused and refused_s is None:
                refused_s = loop.time()
            if refused_s is not None and loop.time() > refused_s + 0.5:
                return f"Envoy refused {kind} {version} and keeps {seen.version if seen else 'the last'}"
            await asyncio.sleep(0.01)
        return f"Envoy did not confirm {kind} {version} in {within_s:g} s: it has {seen or 'no answer'}"
