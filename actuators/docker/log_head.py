"""Read from the log of a container how long its last start took."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice

import docker

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.vllm.start_log import LONGEST_START_S
from flettner.agent.domain.errors import ActError
from flettner.clients.docker.api import EngineAt

_STARTED = re.compile(rb"Application startup complete|Uvicorn running on")
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MAX_LOG_LINES = 20_000  # vLLM writes a few hundred until it serves


async def read_start_log(client: DockerClient, container: Container) -> Sequence[bytes]:
    """Return its lines from the last start until it served, with time stamps; () if they cannot be read."""
    engine = EngineAt(host=client.host, timeout_s=client.timeout_s)
    with suppress(ActError, ValueError):
        started = datetime.fromisoformat(container.state.started_at)
        return await engine.ask(f"the log of {container.id}", lambda api: _read(api, container.id, started))
    return ()


def _read(api: docker.APIClient, container_id: str, started: datetime) -> Sequence[bytes]:
    """Read the log as a stream, and only its head: a month of requests may follow."""
    url = f"{api.base_url}/v{api.api_version}/containers/{container_id}/logs"
    wanted = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": f"{started.timestamp():.6f}"}
    with api.get(url, params=wanted, stream=True, timeout=api.timeout) as answer:
        return until_started(islice(answer.iter_lines(), _MAX_LOG_LINES)) if answer.ok else ()


def until_started(lines: Iterable[bytes]) -> Sequence[bytes]:
    head = []
    for line in lines:
        head.append(line)
        if _STARTED.search(line):
            break
    return head


def measured_start(log: Iterable[bytes], container: Container) -> float | None:
    """Return the seconds from its last start until it served, by its start log; None: not known."""
    served = find_start(log)
    with suppress(ValueError):
        started = datetime.fromisoformat(container.state.started_at)
        if served is not None and 0 <= (took := (served - started).total_seconds()) <= LONGEST_START_S:
            return took
    return None


def find_start(lines: Iterable[bytes]) -> datetime | None:
    """Return the time stamp of the first line that reports a started server. Lines may begin with a frame."""
    for line in lines:
        if _STARTED.search(line) and (stamp := _STAMP.search(line)):
            return datetime.fromisoformat(stamp[0].decode("ascii"))
    return None
