"""The world around one daemon: clients, proxy and servers, second by second, on the clock of the loop."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.loop.clients import Clients
from bench.loop.engine import VirtualEngine
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import Request, RequestSample, Sample
from flettner.simulator.scheduler import SimulatedRequest
from tests.support.fake_traffic import FakeTraffic
from tests.support.virtual_server import Ended

AFTER_THE_TICK_S = 0.5  # within the second of the daemon, for a deterministic order


@dataclass(slots=True, kw_only=True)
class VirtualSite:
    """`live` moves the world; `run` is the daemon's sensor: access records and scrapes, once a second."""

    engine: VirtualEngine
    traffic: FakeTraffic  # bound to the daemon's site
    clients: Clients | None = None  # from the begin of the load on
    ended: list[Ended] = field(default_factory=list)
    sent: int = 0
    asked: list[SimulatedRequest] = field(default_factory=list)  # by the clients
    _view: View | None = None
    _emit: Callable[[Sample], None] = lambda _: None

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        """Emit what the sensors `proxy_requests` and `vllm_metrics` would."""
        del now
        self._view, self._emit = view, emit
        for server in self.engine.virtual.values():
            server.forget_scrapes()
        try:
            await asyncio.Event().wait()
        finally:
            self._view, self._emit = None, lambda _: None

    async def live(self, now: Now) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(AFTER_THE_TICK_S)
        while True:
            await asyncio.sleep(1.0)
            records = self.second(clock())
            if records:
                self._emit(RequestSample(at=now(), requests=records))
            for name in [server.name for server in self._view.servers()] if self._view else []:
                if name in self.engine.virtual:
                    self._emit(self.engine.virtual[name].scrape(now(), clock()))

    def second(self, at_s: float) -> tuple[Request, ...]:
        """Route all requests up to then, run the servers; return the new records of the proxy."""
        weights = self.traffic.weights_in_force
        for coming in self.clients.until(at_s) if self.clients else ():
            self.sent += 1
            self.asked.append(coming.request)
            name = _picked(weights, coming.place)
            if name in self.engine.virtual:
                self.engine.virtual[name].ask(coming.request)
            else:  # Envoy answers 503
                at = coming.request.arrived_at
                self.ended.append(Ended(name or "", at, at, "failed"))
        records: list[Request] = []
        while self.engine.left:
            gone = self.engine.left.pop()
            gone.close(at_s)
            records += gone.take_records(at_s)
            self.ended += gone.take_ended()
        for name, server in self.engine.virtual.items():
            server.advance(at_s)
            server.apply_limits()
            records += server.take_records(at_s)
            self.ended += server.take_ended()
            self.traffic.in_flight_of[name] = server.routed
        return tuple(records)


def _picked(weights: Mapping[str, int], place: float) -> str | None:
    """Weights in percent; None while the proxy is closed."""
    for name, weight in weights.items():
        if place < weight:
            return name
        place -= weight
    return None
