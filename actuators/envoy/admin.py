"""Client of Envoy's admin interface on its unix socket."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from actuators.envoy.split import Json
from agent.io.bounded import parse_json, read_body


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

    async def dump(self, resource: str, *, name: str) -> Sequence[Json] | None:
        """The entries of one kind in Envoy's configuration whose names match the regular expression."""
        answer = await self._get("/config_dump", resource=resource, name_regex=name)
        return None if answer is None else answer.get("configs", ())

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
