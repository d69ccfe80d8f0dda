"""Report incidents of the target's containers, from the events of the Docker Engine."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import docker
from tenacity import AsyncRetrying, retry_if_exception_type

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import Incident, Sample
from flettner.agent.plugins.option_errors import check_periods
from flettner.agent.retrying import Backoff, failure, retry
from flettner.clients.docker.api import EngineAt
from flettner.clients.docker.events import EventStream
from flettner.clients.docker.parse import ContainerEvent, ContainerSummary, event_of, summaries_of
from flettner.primitives.bounded import join_chunks
from flettner.sensors.docker_events.registry import ContainerRegistry
from flettner.sensors.shared.source_reporter import SourceReporter

ACTIONS = ("oom", "die", "start", "kill", "pause", "unpause", "rename", "destroy", "health_status")
NETWORK_ACTIONS = ("connect", "disconnect")
_FILTERS = {"type": ("container", "network"), "event": (*ACTIONS, *NETWORK_ACTIONS)}  # no `exec_…`: many
_CHUNK_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class ContainerListing:
    """All containers of the host, running or not.

    An event names a container by its id only; addresses and networks are in this list.
    """

    containers: tuple[ContainerSummary, ...]


def open_stream(engine: EngineAt, silence_s: float) -> EventStream[ContainerEvent | ContainerListing]:
    """Its first item is a listing; a listing follows each container that starts or joins a network."""
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


SOURCE = "docker_events"
_FIRST_RETRY_S = 0.5
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class DockerEvents:
    """On by default with `[targets.engine] kind = "docker"`, whose `host` and `containers` it takes over.

    A container belongs to the target by flettner's labels, by the address it publishes, or by its name in
    `containers`. After a lost connection it retries after 0.5 s, 1 s, ... up to `retry_at_most_s`; a stream
    without events for `silence_s` is opened again.
    """

    host: str = ""  # as in DOCKER_HOST; empty: DOCKER_HOST, else Docker's own socket
    containers: tuple[str, ...] = ()
    timeout_s: float = 10.0
    silence_s: float = 60.0
    retry_at_most_s: float = 15.0

    def __post_init__(self) -> None:
        if not isinstance(self.host, str):
            raise TypeError(f"host must be an address such as unix:///var/run/docker.sock, not {self.host!r}")
        object.__setattr__(self, "containers", tuple(self.containers))  # TOML has lists
        check_periods(self, "timeout_s", "silence_s", "retry_at_most_s")

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        backoff = Backoff(_FIRST_RETRY_S, self.retry_at_most_s)
        reporter = SourceReporter(emit, now)
        source = _Source(ContainerRegistry(view, self.containers), reporter, on_opened=backoff.reset)
        engine = EngineAt(host=self.host, timeout_s=self.timeout_s)

        async def follow() -> None:
            while True:  # a silent stream ends without an error
                source.opened = False
                async with open_stream(engine, self.silence_s) as stream:
                    await source.follow(stream)

        following = AsyncRetrying(
            retry=retry_if_exception_type(SensorError),
            wait=backoff,
            before_sleep=lambda state: reporter.report(SOURCE, available=False, why=str(failure(state))),
        )
        await retry(following, follow)


@dataclass(slots=True)
class _Source:
    """Turns items of the stream into samples; reports the return of a lost Engine."""

    registry: ContainerRegistry
    reporter: SourceReporter
    on_opened: Callable[[], None]
    opened: bool = False

    async def follow(self, stream: EventStream[ContainerEvent | ContainerListing]) -> None:
        """Return when the stream ends without events. Raises SensorError when it is lost."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    item = await stream.next()
            except TimeoutError:
                pass  # a held event may be confirmed by now
            else:
                if item is None:
                    return
                self._take(item)
            self._emit(self.registry.confirm_held(self.reporter.now(), asyncio.get_running_loop().time()))

    def _take(self, item: ContainerEvent | ContainerListing) -> None:
        if not isinstance(item, ContainerListing):
            clock_s = asyncio.get_running_loop().time()
            self._emit(self.registry.record(item, self.reporter.now(), clock_s))
        elif self.opened:
            self.registry.update(item.containers)
        else:
            self.opened = True
            self.on_opened()
            self._emit(self.registry.resync(item.containers, self.reporter.now()))
            self.reporter.report(SOURCE, available=True)

    def _emit(self, incidents: list[Incident]) -> None:
        for incident in incidents:
            self.reporter.emit(incident)


plugin = DockerEvents
