"""An upgrade from one Envoy for each target to one for all: the former Envoy loses no request.

`former/` has the files of a former Envoy; HOME, LISTEN, BLUE and GREEN stand for its folder and the ports.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.fence import Fence
from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.process import EnvoyProcess, find_binary
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import FencedError
from flettner.agent.domain.ports import Site
from tests.support.sse_backend import Answer, Backend, ask, count_answers, until

FILES = Path(__file__).with_name("former")
XDS = ("cds", "rds", "lds")


def both(blue: Backend, green: Backend) -> Route:
    return Route(
        number=1,
        servers=(blue.server, green.server),
        weights={blue.name: 50, green.name: 50},
        fallback=blue.name,
        leased=green.name,
        lease_s=30.0,
    )


@pytest.fixture
async def former(
    traffic: EnvoyTraffic, tmp_path: Path, blue: Backend, green: Backend
) -> AsyncIterator[EnvoyProcess]:
    """The Envoy of an earlier daemon, of epoch 3, on the port of `traffic`."""
    home = tmp_path / "chat" / "envoy"
    (home / "xds").mkdir(parents=True)
    words = {'"LISTEN"': traffic.listen.rpartition(":")[2], '"BLUE"': str(blue.port), "HOME": str(home)}
    words['"GREEN"'] = str(green.port)
    for name in ("bootstrap", *XDS):
        text = (FILES / f"{name}.json").read_text()
        for word, value in words.items():
            text = text.replace(word, value)
        (home / ("xds" if name in XDS else "") / f"{name}.json").write_text(text)
    (home / "lock").write_text("3 an-earlier-process\n")
    envoy, binary = EnvoyProcess(home), find_binary("")
    assert binary is not None
    await envoy.until_it_answers(binary, envoy.start(binary, concurrency=2), is_child=True)
    yield envoy
    await envoy.kill()


@pytest.fixture
def newer(unbound: EnvoyPlugin, tmp_path: Path) -> EnvoyTraffic:
    return unbound.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=4))


@pytest.mark.usefixtures("former")
async def test_a_new_daemon_observes_the_split_of_the_former_envoy(
    newer: EnvoyTraffic, blue: Backend, green: Backend
) -> None:
    seen = await newer.observe()

    assert await newer.problems() == []
    assert seen is not None
    assert seen.addresses == {blue.name: blue.server.address, green.name: green.server.address}
    assert (seen.weights, seen.leased) == ({blue.name: 50, green.name: 50}, green.name)
    assert (seen.epoch, seen.listening) == (3, True)


async def test_loses_no_request_while_the_common_envoy_takes_over(
    former: EnvoyProcess, newer: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    answers: list[Answer] = []
    over = asyncio.Event()

    async def keep_asking() -> None:
        while not over.is_set():
            answers.append(await ask(client, newer.listen))

    async def ended() -> bool:
        await newer.keep_alive(both(blue, green))
        return former.find() is None

    blue.chunks = green.chunks = 20
    async with asyncio.TaskGroup() as clients:
        for _ in range(16):
            clients.create_task(keep_asking())
        await asyncio.sleep(0.5)
        await newer.keep_alive(both(blue, green))
        await until(ended)
        await asyncio.sleep(0.5)
        over.set()

    assert [answer for answer in answers if not answer.good] == []
    assert len(answers) > 50
    assert not former.home.exists()
    assert await newer.problems() == []


async def test_the_former_envoy_finishes_its_streams_and_they_count_as_in_flight(
    former: EnvoyProcess,
    newer: EnvoyTraffic,
    unbound: EnvoyPlugin,
    blue: Backend,
    green: Backend,
    tmp_path: Path,
) -> None:
    blue.chunks = green.chunks = 40
    blue.gap_s = green.gap_s = 0.1
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        streams = [asyncio.create_task(ask(client, newer.listen)) for _ in range(10)]

        async def all_open() -> bool:
            return blue.served.total() + green.served.total() == len(streams)

        await until(all_open)
        await newer.keep_alive(both(blue, green))
        again = unbound.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=5))
        await again.keep_alive(both(blue, green))
        serves_on = former.find()
        counts = [await again.in_flight(name) for name in (blue.name, green.name)]

        assert [answer.good for answer in await asyncio.gather(*streams)] == [True] * len(streams)
    assert serves_on is not None
    assert sum(count or 0 for count in counts) == len(streams)

    async def ended() -> bool:
        await again.keep_alive(both(blue, green))
        return former.find() is None

    await until(ended)
    assert await again.in_flight(blue.name) == 0


async def test_a_daemon_of_before_the_upgrade_is_fenced_off(
    former: EnvoyProcess,
    traffic: EnvoyTraffic,
    newer: EnvoyTraffic,
    blue: Backend,
    client: aiohttp.ClientSession,
) -> None:
    route = Route(number=2, servers=(blue.server,), weights={blue.name: 100}, fallback=blue.name)
    lock = Fence(former.home / "lock")
    lock.path.write_text("5 a-newer-process\n")

    with pytest.raises(FencedError):
        await newer.route(route)
    assert not newer.files.exist()

    lock.path.write_text("3 an-earlier-process\n")
    await newer.route(route)
    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}
