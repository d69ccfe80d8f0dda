"""The daemon without a proxy and without a cluster: each target has one server, a name with several pods.

    python -m bench.capacity.stand_ins CONFIG PODS RATE

Loops, metrics sensor, policies, journal and API are those of the product. The engine probes /health of each
pod each second, as on Kubernetes; the proxy reports RATE requests a second of each target. Names resolve from
a table, in the resolver's threads.
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from bench.capacity.pod_servers import PORT, pods_of
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.config.loader import load_config
from flettner.agent.domain.effects import Route
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Hold, Server
from flettner.agent.domain.ports import EnginePlugin, Now, Site, Traffic, TrafficSeen, View
from flettner.agent.domain.reading import Request, RequestSample, Sample
from flettner.agent.plugins import loader
from flettner.agent.runtime.wiring import run
from flettner.agent.telemetry import logging
from tests.support.fake_engine import FakeEngine

EVERY_S, TIMEOUT_S = 1.0, 5.0
SUFFIX = ".pods.invalid"


def number_of(target: str) -> int:
    return int(target.removeprefix("t"))


class PodEngine(FakeEngine):
    """One adopted server, whose pods are probed."""

    def __init__(self, target: str, pods: int) -> None:
        server = Server(
            name=f"{target}-r0",
            setting={"max_num_seqs": 256},
            address=f"{target}{SUFFIX}:{PORT}",
            ours=False,
        )
        super().__init__(server, target=target)
        self._pods = pods_of(number_of(target), pods)

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        del server, emit, now
        while True:
            await asyncio.gather(*(OpenAiProbe(address=pod).health(TIMEOUT_S) for pod in self._pods))
            await asyncio.sleep(EVERY_S)


@dataclass(frozen=True, slots=True)
class PodEngineOptions:
    pods: int
    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def lock(self) -> None:
        return None

    def bind(self, site: Site) -> PodEngine:
        return PodEngine(site.target, self.pods)


@dataclass(slots=True)
class IdleTraffic:
    """A proxy that accepts each route."""

    counts_requests: ClassVar[bool] = True
    hold: ClassVar[Hold | None] = None
    seen: TrafficSeen | None = None

    def bind(self, site: Site) -> "IdleTraffic":
        del site
        return IdleTraffic()

    async def problems(self) -> Sequence[str]:
        return ()

    async def observe(self) -> TrafficSeen | None:
        return self.seen

    async def route(self, route: Route) -> None:
        addresses = {server.name: server.address for server in route.servers}
        self.seen = TrafficSeen(weights=dict(route.weights), addresses=addresses, epoch=0)

    async def keep_alive(self, route: Route) -> None:
        await self.route(route)

    async def end_lease(self) -> bool:
        return False

    async def in_flight(self, server: str) -> int | None:
        del server
        return 0

    async def is_settled(self) -> bool:
        return True

    async def stop(self) -> None:
        self.seen = None


@dataclass(frozen=True, slots=True)
class SteadyRequests:
    """Requests of Poisson clients, in the samples of the proxy's sensor."""

    rate: float  # requests/s

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        random = Random(view.target)  # noqa: S311 - arrivals, no secret
        while True:
            await asyncio.sleep(EVERY_S)
            count = sum(random.random() < self.rate / 100 for _ in range(100))
            requests = tuple(_request(f"{view.target}-r0", random.uniform(0.5, 1.5)) for _ in range(count))
            if requests:
                emit(RequestSample(at=now(), requests=requests))


def _request(server: str, times: float) -> Request:
    return Request(
        server=server, outcome="ok", status=200, duration_s=1.5 * times, ttft_s=0.25 * times, tokens=64
    )


def build(
    pods: int,
    rate: float,
    kind: str,
    name: str,
    options: Mapping[str, Any],
    **more: Any,  # noqa: ANN401 - as of the loader
) -> object:
    """Build a plugin as the loader does, or its stand-in."""
    engine: EnginePlugin = PodEngineOptions(pods)
    traffic: Traffic = IdleTraffic()
    match kind, name:
        case "actuators", "process":
            return engine
        case "actuators", _:
            return traffic
        case "sensors", "proxy_requests":
            return SteadyRequests(rate)
        case _:
            return loader.build_plugin(kind, name, options, **more)


def main(config: Path, pods: int, rate: float) -> None:
    resolve = socket.getaddrinfo

    def find(host: Any, port: Any, *args: Any, **more: Any) -> list[Any]:  # noqa: ANN401 - as of the library
        if not str(host).endswith(SUFFIX):
            return list(resolve(host, port, *args, **more))
        addresses = pods_of(number_of(host.removesuffix(SUFFIX)), pods)
        kind = socket.AF_INET, socket.SOCK_STREAM, 0, ""
        return [(*kind, (address.rpartition(":")[0], port)) for address in addresses]

    socket.getaddrinfo = find
    logging.configure("warning")
    settings = load_config(config, build=partial(build, pods, rate))
    asyncio.run(run(settings, settings.mode))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
