"""How long the start of a container took that nobody watched: read from the head of its log."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any

import docker

from actuators.docker_calls import EngineAt
from actuators.docker_client import DockerClient
from agent.errors import ActError

Json = dict[str, Any]

_SERVES = re.compile(rb"Application startup complete|Uvicorn running on")
_MOST_LINES = 20_000  # vLLM says a few hundred until it serves
_LONGEST_S = 6 * 3600.0


async def start_of(client: DockerClient, blue: Json) -> float | None:
    """Seconds from its last start until it served; None where the log does not tell, or is gone."""
    name, state = str(blue.get("Id") or ""), blue.get("State") or {}
    engine = EngineAt(host=client.host, timeout_s=client.timeout_s)
    with suppress(ActError, ValueError):
        started = datetime.fromisoformat(str(state.get("StartedAt") or ""))
        served = await engine.ask(f"the log of {name}", lambda api: _served(api, name, started))
        if served is not None and 0 <= (took := (served - started).total_seconds()) <= _LONGEST_S:
            return took
    return None


def _served(api: docker.APIClient, name: str, started: datetime) -> datetime | None:
    frames = api.logs(
        name,
        stdout=True,
        stderr=True,
        stream=True,
        follow=False,
        timestamps=True,
        since=started.timestamp(),
    )
    return when(islice(_lines(frames), _MOST_LINES))


def when(lines: Iterable[bytes]) -> datetime | None:
    """The time stamp of the first line that says that the server serves."""
    for line in lines:
        if _SERVES.search(line):
            return datetime.fromisoformat(line.partition(b" ")[0].decode("ascii", "replace"))
    return None


def _lines(frames: Iterable[bytes]) -> Iterator[bytes]:
    """A frame is mostly a line, and not always."""
    rest = b""
    for frame in frames:
        *whole, rest = (rest + frame).split(b"\n")
        yield from whole
    yield rest
