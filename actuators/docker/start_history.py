"""How long the start of a container took that nobody watched: read from the head of its log."""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from itertools import islice

import docker

from actuators.docker.client import DockerClient
from actuators.docker.spec import ContainerSpec
from agent.domain.errors import ActError
from docker_engine.api import EngineAt

_SERVES = re.compile(rb"Application startup complete|Uvicorn running on")
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MOST_LINES = 20_000  # vLLM says a few hundred until it serves
_LONGEST_S = 6 * 3600.0


async def start_of(client: DockerClient, blue: ContainerSpec) -> float | None:
    """Seconds from its last start until it served; None where the log does not tell, or is gone."""
    engine = EngineAt(host=client.host, timeout_s=client.timeout_s)
    with suppress(ActError, ValueError):
        started = datetime.fromisoformat(blue.state.started_at)
        served = await engine.ask(f"the log of {blue.id}", lambda api: _served(api, blue.id, started))
        if served is not None and 0 <= (took := (served - started).total_seconds()) <= _LONGEST_S:
            return took
    return None


def _served(api: docker.APIClient, name: str, started: datetime) -> datetime | None:
    """Read as a stream that is left when it has told: what follows may be a month of requests."""
    url = f"{api.base_url}/v{api.api_version}/containers/{name}/logs"
    wanted = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": f"{started.timestamp():.6f}"}
    with api.get(url, params=wanted, stream=True, timeout=api.timeout) as answer:
        return when(islice(answer.iter_lines(), _MOST_LINES)) if answer.ok else None


def when(lines: Iterable[bytes]) -> datetime | None:
    """The time stamp of the first line that says that the server serves; the Engine's frame comes before."""
    for line in lines:
        if _SERVES.search(line) and (stamp := _STAMP.search(line)):
            return datetime.fromisoformat(stamp[0].decode("ascii"))
    return None
