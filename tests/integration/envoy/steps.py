"""Steps of the tests with an Envoy: the route to one server, open requests, a crash of Envoy."""

import os
import signal

from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from tests.support.sse_backend import Backend, until


def alone(backend: Backend, number: int = 1) -> Route:
    return Route(number=number, servers=(backend.server,), weights={backend.name: 100}, fallback=backend.name)


async def until_open(traffic: EnvoyTraffic, server: str, count: int) -> None:
    """Wait until Envoy has this number of open requests at the server."""

    async def all_open() -> bool:
        return await traffic.in_flight(server) == count

    await until(all_open)


async def kill_envoy(traffic: EnvoyTraffic) -> None:
    """Leave its files as a crash does."""
    os.kill(int((traffic.home / "envoy.pid").read_text()), signal.SIGKILL)

    async def gone() -> bool:
        seen = await traffic.observe()
        return seen is not None and not seen.listening

    await until(gone)
