"""A vLLM server in virtual time with data-parallel engines: one address, several queues and KV caches."""

from flettner.agent.domain.reading import Request
from flettner.simulator.card import Card
from flettner.simulator.data_parallel import choose_engine
from flettner.simulator.flags import Flags
from flettner.simulator.metrics import join_pages
from flettner.simulator.scheduler import SimulatedRequest
from tests.support.virtual_server import Ended, VirtualServer


def new_virtual_server(
    name: str, flags: Flags, *, now_s: float, unix_s: float, card: Card | None = None
) -> VirtualServer:
    """Return a server with as many engines as its flags say. Raises StartError."""
    kind = VirtualServer if flags.data_parallel_size == 1 else DataParallelServer
    return kind(name, flags, now_s=now_s, unix_s=unix_s, card=card)


class DataParallelServer(VirtualServer):
    """The first engine, with the others; `steps` are those of the first."""

    def __init__(
        self, name: str, flags: Flags, *, now_s: float, unix_s: float, card: Card | None = None, rank: int = 0
    ) -> None:
        super().__init__(name, flags, now_s=now_s, unix_s=unix_s, card=card, rank=rank)
        self.others = [
            VirtualServer(name, flags, now_s=now_s, unix_s=unix_s, card=card, rank=other)
            for other in range(1, flags.data_parallel_size)
        ]

    @property
    def open(self) -> int:
        return super().open + sum(other.open for other in self.others)

    @property
    def routed(self) -> int:
        return super().routed + sum(other.routed for other in self.others)

    def ask(self, request: SimulatedRequest, *, probe: bool = False) -> None:
        self.advance(request.arrived_at)
        chosen = choose_engine([self.scheduler, *(other.scheduler for other in self.others)])
        if chosen:
            self.others[chosen - 1].ask(request, probe=probe)
        else:
            super().ask(request, probe=probe)

    def advance(self, until_s: float) -> None:
        super().advance(until_s)
        for other in self.others:
            other.advance(until_s)

    def apply_limits(self) -> None:
        if (values := self.new_limits()) is not None:
            for engine in (self, *self.others):
                engine.scheduler.set_limits(values)

    def take_records(self, at_s: float) -> tuple[Request, ...]:
        others = (record for other in self.others for record in other.take_records(at_s))
        return (*super().take_records(at_s), *others)

    def take_ended(self) -> list[Ended]:
        return super().take_ended() + [ended for other in self.others for ended in other.take_ended()]

    def close(self, at_s: float) -> None:
        super().close(at_s)
        for other in self.others:
            other.close(at_s)

    def page(self) -> str:
        return join_pages([super().page(), *(other.page() for other in self.others)])
