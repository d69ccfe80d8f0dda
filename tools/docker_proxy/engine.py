"""The proxy's own lookups: the container, image, network or volume of a name."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout
from yarl import URL

from flettner.tools.docker_proxy.errors import Absent, EngineSilent
from flettner.tools.docker_proxy.strict_json import Json

ADDRESS = "http://engine"
_ANSWER = ClientTimeout(total=20, connect=5)
_MOST_BYTES = 8 * 2**20
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """`name` without its slash. `volumes`: names of volumes."""

    id: str
    name: str
    labels: Json = field(default_factory=dict)
    image: str = ""
    volumes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSocket:
    session: ClientSession  # over the engine's own socket

    async def container(self, name: str) -> Container:
        """Raises Absent with the engine's message, EngineSilent."""
        seen = await self._get(f"/containers/{name}/json")
        try:
            return Container(
                id=_check_full_id(seen["Id"]),
                name=str(seen["Name"]).removeprefix("/"),
                labels=seen["Config"].get("Labels") or {},
                image=seen["Image"],
                volumes=frozenset(_volume_names(seen)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineSilent(f"the engine described {name} without {error}") from error

    async def described(self, container_id: str) -> Json:
        """Return the full inspect document. Raises Absent, EngineSilent."""
        return await self._get(f"/containers/{container_id}/json")

    async def image(self, ref: str) -> tuple[str, ...]:
        """Return all names of the image: id, tags and digests."""
        seen = await self._get(f"/images/{ref}/json")
        names = [seen.get("Id"), *(seen.get("RepoTags") or []), *(seen.get("RepoDigests") or [])]
        return tuple(name for name in names if isinstance(name, str) and not name.startswith("<none>"))

    async def network(self, ref: str) -> tuple[str, str, str]:
        """Return (id, name, driver)."""
        seen = await self._get(f"/networks/{ref}")
        return str(seen.get("Id")), str(seen.get("Name")), str(seen.get("Driver"))

    async def volume(self, name: str) -> tuple[str, Json]:
        """Return (driver, its options)."""
        seen = await self._get(f"/volumes/{name}")
        return str(seen.get("Driver")), seen.get("Options") or {}

    async def _get(self, path: str) -> Json:
        url = URL(f"{ADDRESS}{path}", encoded=True)
        try:
            async with self.session.get(url, timeout=_ANSWER, allow_redirects=False) as reply:
                answer = json.loads(await _read_body(reply))
                if not isinstance(answer, dict):
                    raise EngineSilent(f"GET {path}: no object")
                if reply.status == HTTPStatus.NOT_FOUND:
                    raise Absent(str(answer.get("message", "not found")))
                if reply.status != HTTPStatus.OK:
                    raise EngineSilent(f"GET {path}: {reply.status} {answer.get('message', '')}")
                return answer
        except (ClientError, OSError, ValueError, RecursionError) as error:
            raise EngineSilent(f"the engine does not answer: {str(error) or type(error).__name__}") from error


async def _read_body(reply: ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ValueError(f"its answer is larger than {_MOST_BYTES} bytes")
    return bytes(body)


def _check_full_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise KeyError("a full Id")
    return text


def _volume_names(seen: Json) -> Iterator[str]:
    for mount in seen.get("Mounts") or []:
        if mount.get("Type") == "volume" and mount.get("Name"):
            yield mount["Name"]
