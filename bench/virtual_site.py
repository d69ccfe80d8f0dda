"""The world around one daemon: clients, proxy and servers, second by second, on the clock of the loop."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import Gpu, GpuSample, Request, RequestSample, Sample, SourceState
from flettner.simulator.scheduler import SimulatedRequest
from tests.support.fake_traffic import FakeTraffic
from tests.support.virtual_server import VirtualServer

AFTER_THE_TICK_S = 0.5  # within the second of the daemon, for a deterministic order
BLOCK = 16  # tokens; the block size of the hashes
RECORDS = "proxy_requests"
Server = TypeVar("Server", bound=VirtualServer)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `place`, 0 to 100, chooses its server by the weights."""

    request: SimulatedRequest
    place: float


def new_request(
    number: int, at_s: float, *, prompt: int, output: int, shared: int, group: int
) -> SimulatedRequest:
    """`shared`: tokens that all prompts begin with; the rest is that of the requests of the `group`."""
    hashes = [-1 - at if at < shared // BLOCK else group << 20 | at for at in range(prompt // BLOCK)]
    return SimulatedRequest(name=f"{number}", prompt=prompt, wanted=output, hashes=hashes, arrived_at=at_s)


def choose_server(weights: Iterable[tuple[str, int]], place: float) -> str | None:
    """Choose by weights in percent; None while the proxy is closed."""
    for name, weight in weights:
        if place < weight:
            return name
        place -= weight
    return None


@dataclass(slots=True, kw_only=True)
class VirtualSite(Generic[Server]):
    """`live` moves the world; `run` is the daemon's sensor: access records and scrapes, once a second."""

    traffic: FakeTraffic  # bound to the daemon's site
    records: bool = True  # whether records and scrapes reach the daemon
    scrapes: bool = True
    gpus: tuple[Gpu, ...] = ()  # of the host; empty: nothing is known of them
    _view: View | None = None
    _emit: Callable[[Sample], None] = lambda _: None
    _records_were: bool = True

    @property
    def servers(self) -> Mapping[str, Server]:
        raise NotImplementedError

    def run_second(self) -> tuple[Request, ...]:
        """Route the requests of one second, run the servers; return the new records of the proxy."""
        raise NotImplementedError

    async def live(self, now: Now) -> None:
        await asyncio.sleep(AFTER_THE_TICK_S)
        while True:
            await asyncio.sleep(1.0)
            self._report(self.run_second(), now)

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        """Emit as `proxy_requests` and `vllm_metrics` do; data emitted without a listener is lost."""
        del now
        self._view, self._emit = view, emit
        for server in self.servers.values():
            server.forget_scrapes()
        try:
            await asyncio.Event().wait()
        finally:
            self._view, self._emit = None, lambda _: None

    def _report(self, requests: tuple[Request, ...], now: Now) -> None:
        if self._records_were is not self.records:
            self._records_were, why = self.records, "" if self.records else "Envoy has closed its connection"
            self._emit(SourceState(at=now(), source=RECORDS, available=self.records, why=why))
        if self.records and requests:
            self._emit(RequestSample(at=now(), requests=requests))
        if self.gpus:
            self._emit(GpuSample(at=now(), gpus=self.gpus))
        clock = asyncio.get_running_loop().time
        for name in [server.name for server in self._view.servers()] if self._view else []:
            if self.scrapes and (server := self.find_server(name)) is not None:
                self._emit(server.scrape(now(), clock()))
            elif name in self.servers:
                self.servers[name].forget_scrapes()

    def find_server(self, name: str) -> Server | None:
        return self.servers.get(name)
