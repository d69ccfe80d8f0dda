"""A suspended older daemon that resumes changes nothing in the Envoy of a newer one."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.ports import Site
from tests.integration.envoy.steps import alone
from tests.support.sse_backend import Backend, count_answers

Act = Callable[[], Awaitable[object]]


def alone_at(backend: Backend, address: str) -> Route:
    """A route that flettner accepts and Envoy does not."""
    return replace(alone(backend, 2), servers=(replace(backend.server, address=address),))


@pytest.fixture
def newer(unbound: EnvoyPlugin, tmp_path: Path) -> EnvoyTraffic:
    return unbound.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=4))


async def test_the_older_daemon_stays_fenced_when_the_newer_route_is_rolled_back(
    traffic: EnvoyTraffic, newer: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    await traffic.route(alone(blue))
    nowhere = alone_at(green, "[fe80::1%nowhere]:80")

    with pytest.raises(ActError, match="Envoy refused"):
        await newer.route(nowhere)
    with pytest.raises(FencedError):
        await traffic.route(alone(green, 2))

    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}


async def test_a_fenced_daemon_neither_stops_nor_starts_envoy(
    traffic: EnvoyTraffic, newer: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await newer.route(alone(blue))
    pid = (traffic.home / "envoy.pid").read_text()

    acts: list[Act] = [
        lambda: traffic.files.shared(traffic._writer, traffic._process.end),
        traffic._start,
        lambda: traffic.keep_alive(alone(blue)),
    ]
    for act in acts:
        with pytest.raises(FencedError):
            await act()

    assert (traffic.home / "envoy.pid").read_text() == pid
    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}


async def test_does_not_start_a_second_envoy(
    traffic: EnvoyTraffic, newer: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await traffic.route(alone(blue))
    pid = (traffic.home / "envoy.pid").read_text()

    await newer._start()

    assert (traffic.home / "envoy.pid").read_text() == pid
    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}


async def test_ends_the_lease_as_the_newest_admitted_daemon(
    traffic: EnvoyTraffic, newer: EnvoyTraffic, unbound: EnvoyPlugin, blue: Backend, green: Backend
) -> None:
    route = replace(alone(blue), servers=(blue.server, green.server), leased=green.name, lease_s=30.0)
    await traffic.route(replace(route, weights={blue.name: 50, green.name: 50}))
    nowhere = alone_at(green, "[fe80::1%nowhere]:80")
    with pytest.raises(ActError, match="Envoy refused"):
        await newer.route(nowhere)
    clean_up = unbound.bind(Site(target="chat", state_dir=traffic.home.parent / "chat", epoch=0))

    assert await clean_up.end_lease()

    seen = await clean_up.observe()
    assert seen is not None
    assert seen.epoch == 4
