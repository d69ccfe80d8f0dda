"""One Envoy serves all targets of a daemon, and a change of one does not touch the others."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.process import EnvoyProcess, find_binary
from flettner.actuators.envoy.reported_config import ReportedConfig
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.ports import Site
from tests.integration.envoy.steps import alone, kill_envoy, until_open
from tests.support.ports import free_port
from tests.support.sse_backend import Backend, ask, count_answers, until

pytestmark = pytest.mark.smoke


def bind(name: str, state_dir: Path, epoch: int = 3) -> EnvoyTraffic:
    traffic = EnvoyPlugin(listen=f"127.0.0.1:{free_port()}", report_every_s=0.25)
    return traffic.bind(Site(target=name, state_dir=state_dir / name, epoch=epoch))


@pytest.fixture
async def code(tmp_path: Path) -> EnvoyTraffic:
    """A second target beside `traffic`, whose fixture ends Envoy."""
    return bind("code", tmp_path)


@pytest.fixture
async def slow() -> AsyncIterator[Backend]:
    """A server of the second target that has the name of one of the first."""
    async with Backend("chat-r1", chunks=40, gap_s=0.05) as backend:
        yield backend


async def test_two_targets_share_one_envoy_and_have_servers_of_one_name(
    traffic: EnvoyTraffic, code: EnvoyTraffic, blue: Backend, slow: Backend, client: aiohttp.ClientSession
) -> None:
    slow.gap_s = 0.0
    await asyncio.gather(traffic.route(alone(blue)), code.route(alone(slow)))

    await count_answers(client, traffic.listen, 5)
    await count_answers(client, code.listen, 7)
    seen = [await envoy.observe() for envoy in (traffic, code)]

    assert (blue.served.total(), slow.served.total()) == (5, 7)
    assert [route and route.addresses for route in seen] == [
        {blue.name: blue.server.address},
        {slow.name: slow.server.address},
    ]
    assert traffic.home == code.home


async def test_a_stream_of_one_target_survives_every_change_of_another(
    traffic: EnvoyTraffic,
    code: EnvoyTraffic,
    blue: Backend,
    green: Backend,
    slow: Backend,
    client: aiohttp.ClientSession,
    tmp_path: Path,
) -> None:
    await traffic.route(alone(blue))
    await code.route(alone(slow))
    streams = [asyncio.create_task(ask(client, code.listen)) for _ in range(8)]
    await until_open(code, slow.name, len(streams))
    elsewhere = bind("chat", tmp_path)
    await traffic.route(replace(alone(green, 2), servers=(blue.server, green.server)))
    await traffic.route(alone(green, 3))
    await elsewhere.route(alone(green, 4))

    assert await code.in_flight(slow.name) == len(streams)
    assert [answer.good for answer in await asyncio.gather(*streams)] == [True] * len(streams)
    assert await count_answers(client, elsewhere.listen, 5) == {green.name: 5}


async def test_a_refused_route_of_one_target_does_not_delay_another(
    traffic: EnvoyTraffic, code: EnvoyTraffic, blue: Backend, slow: Backend, client: aiohttp.ClientSession
) -> None:
    slow.gap_s = 0.0
    await traffic.route(alone(blue))
    nowhere = replace(blue.server, name="nowhere", address="[fe80::1%nowhere]:80")
    refused = replace(alone(blue, 2), servers=(blue.server, nowhere))

    outcomes = await asyncio.gather(traffic.route(refused), code.route(alone(slow)), return_exceptions=True)

    assert isinstance(outcomes[0], ActError)
    assert outcomes[1] is None
    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}
    assert await count_answers(client, code.listen, 5) == {slow.name: 5}


async def test_the_first_target_of_a_new_daemon_does_not_fence_the_next_one(
    traffic: EnvoyTraffic, code: EnvoyTraffic, blue: Backend, slow: Backend, tmp_path: Path
) -> None:
    await traffic.route(alone(blue))
    await code.route(alone(slow))
    newer = [bind(name, tmp_path, epoch=4) for name in ("chat", "code")]

    await newer[0].keep_alive(alone(blue))
    before = await newer[1].observe()
    await newer[1].keep_alive(alone(slow))
    after = await newer[1].observe()

    assert before is not None
    assert after is not None
    assert (before.epoch, after.epoch) == (3, 4)
    with pytest.raises(FencedError):
        await code.keep_alive(alone(slow))


async def test_a_killed_envoy_restarts_with_all_targets(
    traffic: EnvoyTraffic, code: EnvoyTraffic, blue: Backend, slow: Backend, client: aiohttp.ClientSession
) -> None:
    slow.gap_s = 0.0
    await traffic.route(alone(blue))
    await code.route(alone(slow))
    await kill_envoy(traffic)

    await traffic.keep_alive(alone(blue))  # it may be the first to notice

    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}
    assert await count_answers(client, code.listen, 5) == {slow.name: 5}


@pytest.mark.parametrize("garbage", [b"{", None], ids=["broken", "missing"])
async def test_broken_files_of_one_target_do_not_harm_another_when_envoy_restarts(
    traffic: EnvoyTraffic,
    code: EnvoyTraffic,
    blue: Backend,
    slow: Backend,
    client: aiohttp.ClientSession,
    garbage: bytes | None,
) -> None:
    slow.gap_s = 0.0
    await traffic.route(alone(blue))
    await code.route(alone(slow))
    await kill_envoy(traffic)
    for kind in ("cds", "rds", "lds"):
        code.files.path(kind).unlink()
        if garbage is not None:
            code.files.path(kind).write_bytes(garbage)
    (traffic.home / "xds" / "cds.json").write_bytes(b"{")

    await traffic.keep_alive(alone(blue))
    only_chat = await count_answers(client, traffic.listen, 5)
    await traffic.route(alone(blue, 2))
    await code.keep_alive(alone(slow))

    assert only_chat == await count_answers(client, traffic.listen, 5) == {blue.name: 5}
    assert await count_answers(client, code.listen, 5) == {slow.name: 5}


async def test_a_taken_port_of_one_target_does_not_harm_another_and_is_noticed_until_it_is_free(
    traffic: EnvoyTraffic,
    code: EnvoyTraffic,
    blue: Backend,
    green: Backend,
    slow: Backend,
    client: aiohttp.ClientSession,
) -> None:
    slow.gap_s = 0.0
    await traffic.route(alone(blue))
    await code.route(alone(slow))
    await kill_envoy(traffic)
    host, _, port = code.listen.partition(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port may have old connections
        other.bind((host, int(port)))
        other.listen()

        await traffic.keep_alive(alone(blue))
        await traffic.route(alone(green, 2))
        with pytest.raises(ActError, match="Envoy refused lds of code"):
            await code.keep_alive(alone(slow))
        assert await count_answers(client, traffic.listen, 5) == {green.name: 5}
    await code.keep_alive(alone(slow))

    assert await count_answers(client, code.listen, 5) == {slow.name: 5}


async def test_the_folder_of_a_removed_target_ends_its_listener_at_the_next_start(
    traffic: EnvoyTraffic, code: EnvoyTraffic, blue: Backend, slow: Backend, tmp_path: Path
) -> None:
    await traffic.route(alone(blue))
    await code.route(alone(slow))
    newer = bind("chat", tmp_path, epoch=4)

    shutil.rmtree(traffic.home / "targets" / "code")
    await newer.keep_alive(alone(blue))

    async def closed() -> bool:
        return not await ReportedConfig(Admin(traffic.home / "admin.sock"), "code").listening()

    await until(closed)


@pytest.mark.parametrize("kind", ["cds", "lds"])
async def test_a_daemon_that_dies_between_a_part_and_the_union_leaves_no_gap(
    traffic: EnvoyTraffic,
    code: EnvoyTraffic,
    blue: Backend,
    slow: Backend,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    kind: str,
) -> None:
    slow.gap_s = 0.0
    await traffic.route(alone(blue))
    before = (traffic.home / "xds" / f"{kind}.json").read_bytes()
    await code.route(alone(slow))
    await code.stop()
    (traffic.home / "xds" / f"{kind}.json").write_bytes(before)
    binary = find_binary("")
    assert binary is not None
    process = EnvoyProcess(traffic.home)
    await process.until_it_answers(binary, process.start(binary, concurrency=1), is_child=True)

    await bind("chat", tmp_path, epoch=4).keep_alive(alone(blue))
    newer = EnvoyPlugin(listen=code.listen).bind(Site(target="code", state_dir=tmp_path / "code", epoch=4))
    await newer.keep_alive(alone(slow))

    assert await count_answers(client, code.listen, 5) == {slow.name: 5}
