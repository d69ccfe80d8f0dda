"""The world of one rollout: blue, green with its faults, and clients with incidents of all servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bench.rollouts.cases import Green, Profile, Service
from bench.rollouts.clients import Clients
from bench.rollouts.servers import FaultyServer
from bench.virtual_site import VirtualSite, choose_server
from flettner.agent.domain.calibration import Calibration, CalibrationWindow
from flettner.agent.domain.reading import Request
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.simulator.faults import Faults
from flettner.simulator.text import draws
from tests.support.fake_engine import FakeEngine

BLUE = "chat-r0"


@dataclass(slots=True, kw_only=True)
class World(VirtualSite[FaultyServer]):
    """Seconds since the world began, which may be long before the daemon's clock begins."""

    seed: int
    service: Service
    profile: Profile
    green: Green
    clients: Clients
    engine: FakeEngine
    at_s: float = 0.0
    incident_s: tuple[float, float] = (0.0, 0.0)  # start and end
    created: dict[str, FaultyServer] = field(default_factory=dict)

    @property
    def servers(self) -> Mapping[str, FaultyServer]:
        return self.created

    def find_server(self, name: str) -> FaultyServer:
        """Return the server, created on first use; all but blue have the faults of the candidate."""
        if name not in self.created:
            is_blue = name == BLUE
            self.created[name] = FaultyServer(
                name,
                self.service.hardware,
                self.service.seqs if is_blue else self.green.seqs or self.service.seqs,
                now_s=self.at_s,
                random=draws(self.seed, "server", name),
                slowly=self.service.slowly,
                faults=Faults() if is_blue else self.green.faults_at(self.service),
                pauses=self.profile.pauses(draws(self.seed, "pauses", name)),
            )
        return self.created[name]

    def calibrate(self, seconds: int, at: datetime) -> Mapping[str, Calibration]:
        """Return the calibration of blue from the seconds before `at`."""
        window = CalibrationWindow()
        for second in range(seconds):
            arm = count_requests(self._serve({BLUE: 100}), self.service.slo)
            arms = {BLUE: arm} if arm != RequestCounts() else {}
            window.add(at + timedelta(seconds=second - seconds), arms)
        return window.calibrations(at)

    def run_second(self) -> tuple[Request, ...]:
        requests = self._serve(self.traffic.weights_in_force)
        for name, server in self.created.items():
            self.engine.requests[name] = self.traffic.in_flight_of[name] = server.open
        return requests

    def _serve(self, weights: Mapping[str, int]) -> tuple[Request, ...]:
        """Send the requests of the next second; return the finished ones."""
        until_s = self.at_s + 1.0
        newest_first = sorted(weights.items(), key=lambda share: share[0] == BLUE)
        for arrival in self.clients.until(until_s):  # a session of green stays there as its share grows
            name = choose_server(newest_first, arrival.place)
            if name is not None:
                is_incident = self.incident_s[0] <= arrival.request.arrived_at < self.incident_s[1]
                errors = self.profile.incident_errors if is_incident else 0.0
                self.find_server(name).ask(arrival.request, errors=errors)
        self.at_s = until_s
        records: list[Request] = []
        for server in self.created.values():
            server.advance(until_s)
            records += server.take_records(until_s)
            server.take_ended()
        return tuple(records)
