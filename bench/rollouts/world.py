"""The world around one daemon: clients, servers and a proxy, second by second, on the loop clock."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bench.rollouts.cases import Green, Profile, Service
from bench.rollouts.clients import Clients
from bench.rollouts.servers import SimServer
from flettner.agent.domain.calibration import Calibration, CalibrationWindow
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import Request, RequestSample, Sample, SourceState
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.simulator.faults import Faults
from flettner.simulator.hardware import PRESETS
from flettner.simulator.text import draws
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic

BLUE = "chat-r0"
AFTER_THE_TICK_S = 0.5  # within the second of the daemon, for a deterministic order
RECORDS = "proxy_requests"


@dataclass(slots=True, kw_only=True)
class World:
    """`live` runs the clients; `run` is the sensor of the daemon."""

    seed: int
    service: Service
    profile: Profile
    green: Green
    clients: Clients
    engine: FakeEngine
    traffic: FakeTraffic  # bound to the daemon's site
    at_s: float = 0.0  # since the world began
    incident_s: tuple[float, float] = (0.0, 0.0)  # start and end on the same clock
    records: bool = True  # whether records and scrapes reach the daemon
    scrapes: bool = True
    asked: dict[str, int] = field(default_factory=dict)  # requests by server
    servers: dict[str, SimServer] = field(default_factory=dict)
    _view: View | None = None
    _emit: Callable[[Sample], None] = lambda _: None
    _records_were: bool = True

    def server(self, name: str) -> SimServer:
        """Return the server, created on first use; all but blue have the faults of the candidate."""
        if name not in self.servers:
            self.servers[name] = SimServer(
                name=name,
                hardware=PRESETS[self.service.hardware],
                slowly=self.service.slowly,
                faults=Faults() if name == BLUE else self.green.faults_at(self.service),
                random=draws(self.seed, "server", name),
                pauses=self.profile.pauses(draws(self.seed, "pauses", name)),
                now_s=self.at_s,
                seqs=self.service.seqs if name == BLUE else self.green.seqs or self.service.seqs,
            )
        return self.servers[name]

    def history(self, seconds: int, at: datetime) -> Mapping[str, Calibration]:
        """Return the calibration of blue from the seconds before `at`."""
        steadiness = CalibrationWindow()
        for second in range(seconds):
            arm = count_requests(self.second({BLUE: 100}, self.at_s + 1.0), self.service.slo)
            steadiness.add(
                at + timedelta(seconds=second - seconds), {BLUE: arm} if arm != RequestCounts() else {}
            )
        return steadiness.calibrations(at)

    async def live(self, now: Now) -> None:
        await asyncio.sleep(AFTER_THE_TICK_S)
        while True:
            await asyncio.sleep(1.0)
            requests = self.second(self.traffic.weights_in_force, self.at_s + 1.0)
            for name, server in self.servers.items():
                self.engine.requests[name] = self.traffic.in_flight_of[name] = server.open
            self._tell(requests, now())

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        """As the sensors `proxy_requests` and `vllm_metrics`; data emitted without a listener is lost."""
        del now
        self._view, self._emit = view, emit
        for server in self.servers.values():
            server.forget_scrapes()
        try:
            await asyncio.Event().wait()
        finally:
            self._view, self._emit = None, lambda _: None

    def second(self, weights: Mapping[str, int], until_s: float) -> tuple[Request, ...]:
        """Send all requests up to then; return the finished ones."""
        for coming in self.clients.until(until_s):
            name = _picked(weights, coming.place)
            if name is None:
                continue
            ill = self.incident_s[0] <= coming.request.arrived_at < self.incident_s[1]
            self.server(name).ask(coming.request, errors=self.profile.incident_errors if ill else 0.0)
            self.asked[name] = self.asked.get(name, 0) + 1
        self.at_s = until_s
        ended: list[Request] = []
        for server in self.servers.values():
            server.advance(until_s)
            ended += server.fetch(until_s)
        return tuple(ended)

    def _tell(self, requests: tuple[Request, ...], at: datetime) -> None:
        if self._records_were is not self.records:
            self._records_were, why = self.records, "" if self.records else "Envoy has closed its connection"
            self._emit(SourceState(at=at, source=RECORDS, available=self.records, why=why))
        if self.records and requests:
            self._emit(RequestSample(at=at, requests=requests))
        for name in [server.name for server in self._view.servers()] if self._view else []:
            if self.scrapes:
                self._emit(self.server(name).scrape(at))
            else:
                self.server(name).forget_scrapes()


def _picked(weights: Mapping[str, int], place: float) -> str | None:
    """Order the newest first, so that sessions of green stay on green as its share grows."""
    for name in sorted(weights, key=lambda name: name == BLUE):
        if place < weights[name]:
            return name
        place -= weights[name]
    return None
