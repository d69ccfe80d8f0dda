"""The samples of the daemon's sensor: scrapes of the servers and the proxy's records."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import nan

from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import EngineSample, Reading, Request, RequestSample, Sample, SourceState
from flettner.agent.observe.aggregator import Aggregator
from tests.simulation.adapters import Host, wait
from tests.simulation.load import ANSWERS
from tests.simulation.world import Client


@dataclass(slots=True, kw_only=True)
class SimFold(Aggregator):
    """Aggregates a window only when the machine reads it: once a second costs a tenth of the run time."""

    wanted: Callable[[], bool]

    def reading(self, server: str, at: datetime) -> Reading | None:
        return Aggregator.reading(self, server, at) if self.wanted() else None


@dataclass(repr=False, slots=True)
class Metrics:
    """A scrape of each server and the proxy's records, once a second."""

    host: Host
    read: int = 0

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        world, blind = self.host.world, False
        silent: set[str] = set()
        self.read = len(world.records)
        while True:
            await wait(self.host, 1.0)
            if not self.host.active("metrics stale") and not self.host.active("metrics missing"):
                for server in view.servers():
                    answers = world.answers(server.name)
                    if answers is (server.name in silent):
                        source = f"vllm_metrics {server.name}"
                        emit(
                            SourceState(
                                at=now(),
                                source=source,
                                server=server.name,
                                available=answers,
                                why="no answer",
                            )
                        )
                        silent ^= {server.name}
                    if answers:
                        emit(self._scrape(server.name, now))
            lost = self.host.active("records missing")
            if lost is not blind:
                emit(
                    SourceState(at=now(), source="proxy_requests", available=blind, why="the socket is gone")
                )
                blind = lost
            new, self.read = world.records[self.read :], len(world.records)
            if new and not blind:
                failed = tuple(
                    client.server for client in new if client.outcome == "failed" and client.id >= 0
                )
                emit(RequestSample(at=now(), requests=tuple(map(_request, new)), lost=failed))

    def _scrape(self, name: str, now: Now) -> EngineSample:
        world = self.host.world
        running = world.open_at(name)
        wedged = world.servers[name].status == "wedged"
        return EngineSample(
            at=now(),
            server=name,
            interval_s=0.0 if self.host.active("metrics reset") else 1.0,
            running=nan if self.host.active("metrics NaN") else 1.0 + running,
            waiting=6.0,
            kv_usage=0.3,
            generation_tokens=0.0 if wedged else 40.0,
            answers=None if wedged else ANSWERS[world.is_long],
        )


def _request(client: Client) -> Request:
    duration_s = max(0.1, client.ended_s - client.began_s)
    return Request(
        server=client.server,
        outcome=client.outcome,  # type: ignore[arg-type]
        status=client.status,
        duration_s=duration_s,
        ttft_s=0.1 if client.outcome == "ok" else None,
    )
