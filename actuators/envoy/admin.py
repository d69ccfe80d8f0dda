"""Client of Envoy's admin interface on its unix socket."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiohttp

from flettner.actuators.envoy.split import Json
from flettner.primitives.bounded import parse_json, read_body


class RequestsSeen(NamedTuple):
    total: int
    open: int


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

    async def stats(self, pattern: str, kind: str = "All") -> Mapping[str, int | str] | None:
        """Those whose names match the regular expression.

        `kind`: Counters, Gauges or TextReadouts, which takes Envoy a fraction of the time of all.
        """
        answer = await self._get("/stats", format="json", filter=pattern, type=kind)
        if answer is None:
            return None
        return {stat["name"]: stat["value"] for stat in answer.get("stats", ()) if "name" in stat}

    async def open_requests(self, cluster: str) -> int | None:
        """0 for a cluster that Envoy does not know."""
        name = re.escape(f"cluster.{cluster}.")
        stats = await self.stats(rf"^{name}upstream_rq_(active|pending_active)$", "Gauges")
        return None if stats is None else sum(int(count) for count in stats.values())

    async def uptime_s(self) -> int | None:
        """Written when each thread has handed over its histograms, every `stats_flush_interval`."""
        stats = await self.stats(r"^server\.uptime$", "Gauges")
        return None if stats is None else int(stats.get("server.uptime", 0))

    async def hosts(self, cluster: str) -> int | None:
        """How many addresses it has: 0 if its name was not resolved, or Envoy does not know it."""
        name = f"cluster.{cluster}.membership_total"
        stats = await self.stats(f"^{re.escape(name)}$", "Gauges")
        return None if stats is None else int(stats.get(name, 0))

    async def count_requests(self, target: str) -> "RequestsSeen | None":
        """Those of all servers of a target since Envoy knows them."""
        names = rf"^cluster\.{re.escape(target)}/.*\.upstream_rq_(total|active|pending_active)$"
        stats = await self.stats(names)
        if stats is None:
            return None
        total = sum(int(count) for name, count in stats.items() if name.endswith("_total"))
        return RequestsSeen(total=total, open=sum(int(count) for count in stats.values()) - total)

    async def dump(self, resource: str, *, name: str) -> Sequence[Json] | None:
        """The entries of one kind in Envoy's configuration whose names match the regular expression."""
        answer = await self._get("/config_dump", resource=resource, name_regex=name)
        return None if answer is None else answer.get("configs", ())

    async def drain(self) -> bool:
        """Accept no more connections; each open one ends with its request. False if Envoy does not answer.

        A failed health check is what makes Envoy close a connection after its next answer. The kernel resets
        a connection that no thread of Envoy has accepted yet.
        """
        return await self._post("/drain_listeners") and await self._post("/healthcheck/fail")

    async def _post(self, path: str) -> bool:
        try:
            async with self._session() as session, session.post(f"http://envoy{path}") as answer:
                return answer.ok
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
