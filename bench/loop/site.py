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

SLICE_S = 0.02  # in which servers of one card are advanced in turn: about a step


@dataclass(slots=True, kw_only=True)
class LoopSite(VirtualSite[VirtualServer]):
    engine: VirtualEngine
    clients: Clients | None = None  # from the begin of the load on
    ended: list[Ended] = field(default_factory=list)
    sent: list[SimulatedRequest] = field(default_factory=list)  # by the clients
    _together_s: float = 0.0  # until when servers of one card were advanced together

    @property
    def servers(self) -> Mapping[str, VirtualServer]:
        return self.engine.virtual

    def run_second(self) -> tuple[Request, ...]:
        at_s, weights = asyncio.get_running_loop().time(), self.traffic.weights_in_force
        for arrival in self.clients.until(at_s) if self.clients else ():
            self.sent.append(arrival.request)
            name = choose_server(weights.items(), arrival.place)
            if name in self.engine.virtual:
                self._advance_all(arrival.request.arrived_at)
                self.engine.virtual[name].ask(arrival.request)
            else:  # Envoy answers 503
                arrived_s = arrival.request.arrived_at
                self.ended.append(Ended(name or "", arrived_s, arrived_s, "failed"))
        records: list[Request] = []
        while self.engine.left:
            server = self.engine.left.pop()
            server.close(at_s)
            records += self._take(server, at_s)
        self._advance_all(at_s)
        self.gpus = self.engine.describe_gpus()
        for name, server in self.engine.virtual.items():
            server.advance(at_s)
            server.apply_limits()
            records += self._take(server, at_s)
            self.traffic.in_flight_of[name] = server.routed
        return tuple(records)

    def _advance_all(self, at_s: float) -> None:
        """Advance servers of one card together, as each slows the steps of the others."""
        if self.engine.card is None or len(self.engine.virtual) == 1:
            return
        while self._together_s < at_s:
            self._together_s = min(at_s, max(self._together_s, at_s - 1.0) + SLICE_S)
            for server in self.engine.virtual.values():
                server.advance(self._together_s)

    def _take(self, server: VirtualServer, at_s: float) -> tuple[Request, ...]:
        records = server.take_records(at_s)
        self.ended += server.take_ended()
        return records
