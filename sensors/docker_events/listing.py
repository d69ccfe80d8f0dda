"""The events of the Engine together with lists of its containers.

An event names a container by its id. Addresses and networks are in the list of containers only, so a list is
taken when the stream is open, and after each event that changes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import docker

from flettner.agent.io.bounded import join_chunks
from flettner.clients.docker.api import EngineAt
from flettner.clients.docker.events import EventStream
from flettner.clients.docker.parse import ContainerEvent, ContainerSummary, event_of, summaries_of

ACTIONS = ("oom", "die", "start", "kill", "pause", "unpause", "rename", "destroy", "health_status")
NETWORK_ACTIONS = ("connect", "disconnect")
_FILTERS = {"type": ("container", "network"), "event": (*ACTIONS, *NETWORK_ACTIONS)}  # no `exec_…`: many
_CHUNK_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class ContainerListing:
    """All containers of the host, running or not."""

    containers: tuple[ContainerSummary, ...]


def open_stream(engine: EngineAt, silence_s: float) -> EventStream[ContainerEvent | ContainerListing]:
    """Its first item is a listing; one more follows each container that starts or joins a network."""
    return EventStream(engine.connected, _FILTERS, _read, silence_s=silence_s)


def _read(api: docker.APIClient, lines: Iterator[bytes]) -> Iterator[ContainerEvent | ContainerListing]:
    yield _listing(api)
    for line in lines:
        event = event_of(line)
        yield event
        if event.action in {"start", "connect"}:
            yield _listing(api)


def _listing(api: docker.APIClient) -> ContainerListing:
    """Raises ValueError if the list is too long, SensorError if it cannot be read."""
    url = f"{api.base_url}/v{api.api_version}/containers/json"
    with api.get(url, params={"all": 1}, stream=True, timeout=api.timeout) as answer:
        answer.raise_for_status()
        return ContainerListing(summaries_of(join_chunks(answer.iter_content(_CHUNK_BYTES))))
