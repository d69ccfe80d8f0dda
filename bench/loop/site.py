"""The world around one daemon of a world: its virtual engine's servers, its clients and its proxy."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.loop.clients import Clients
from bench.loop.engine import VirtualEngine
from bench.virtual_site import VirtualSite, choose_server
from flettner.agent.domain.reading import Request
from flettner.simulator.scheduler import SimulatedRequest
from tests.support.virtual_server import Ended, VirtualServer


@dataclass(slots=True, kw_only=True)
class LoopSite(VirtualSite[VirtualServer]):
    engine: VirtualEngine
    clients: Clients | None = None  # from the begin of the load on
    ended: list[Ended] = field(default_factory=list)
    sent: list[SimulatedRequest] = field(default_factory=list)  # by the clients

    @property
    def servers(self) -> Mapping[str, VirtualServer]:
        return self.engine.virtual

    def run_second(self) -> tuple[Request, ...]:
        at_s, weights = asyncio.get_running_loop().time(), self.traffic.weights_in_force
        for arrival in self.clients.until(at_s) if self.clients else ():
            self.sent.append(arrival.request)
            name = choose_server(weights.items(), arrival.place)
            if name in self.engine.virtual:
                self.engine.virtual[name].ask(arrival.request)
            else:  # Envoy answers 503
                arrived_s = arrival.request.arrived_at
                self.ended.append(Ended(name or "", arrived_s, arrived_s, "failed"))
        records: list[Request] = []
        while self.engine.left:
            server = self.engine.left.pop()
            server.close(at_s)
            records += self._take(server, at_s)
        for name, server in self.engine.virtual.items():
            server.advance(at_s)
            server.apply_limits()
            records += self._take(server, at_s)
            self.traffic.in_flight_of[name] = server.routed
        return tuple(records)

    def _take(self, server: VirtualServer, at_s: float) -> tuple[Request, ...]:
        records = server.take_records(at_s)
        self.ended += server.take_ended()
        return records
