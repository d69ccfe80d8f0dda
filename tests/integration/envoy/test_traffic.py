import asyncio
import os
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from tests.integration.envoy.steps import alone, kill_envoy, until_open
from tests.support.ports import free_port
from tests.support.sse_backend import Answer, Backend, ask, count_answers, until

pytestmark = pytest.mark.smoke


def split(blue: Backend, green: Backend, weight: int, number: int = 17) -> Route:
    weights = {blue.name: 100 - weight, green.name: weight}
    return Route(number=number, servers=(blue.server, green.server), weights=weights, fallback=blue.name)


def files(traffic: EnvoyTraffic) -> dict[str, bytes]:
    """The target's part and the union."""
    home = traffic.home
    paths = (*home.glob("targets/*/*.json"), *home.glob("xds/*.json"))
    return {str(path): path.read_bytes() for path in paths}


async def test_route_returns_once_the_split_is_in_force(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    for number, weight in enumerate((0, 100, 0, 100), start=1):
        await traffic.route(split(blue, green, weight, number))

        served = await count_answers(client, traffic.listen, 20)

        assert served == {(green if weight else blue).name: 20}


async def test_loses_no_request_while_weights_change_and_a_server_is_removed(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    answers: list[Answer] = []
    over = asyncio.Event()
    blue.gap_s = green.gap_s = 0.02

    async def keep_asking() -> None:
        while not over.is_set():
            answers.append(await ask(client, traffic.listen))

    await traffic.route(alone(blue))
    async with asyncio.TaskGroup() as clients:
        for _ in range(12):
            clients.create_task(keep_asking())
        for number, weight in enumerate((5, 50, 100, 50, 0), start=2):
            await traffic.route(split(blue, green, weight, number))
            await asyncio.sleep(0.4)
        await until_open(traffic, green.name, 0)
        await traffic.route(alone(blue, 9))
        await asyncio.sleep(0.2)
        over.set()

    assert [answer for answer in answers if not answer.good] == []
    assert min(Counter(answer.server for answer in answers).values()) > 10


async def test_a_server_whose_name_has_no_address_gets_no_request(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    nowhere = replace(green.server, address="green.onion:8000")  # of these, c-ares asks no name server
    await traffic.route(alone(blue))
    with pytest.raises(ActError, match=r"found no address for green\.onion:8000"):
        await traffic.route(replace(split(blue, green, 100, 2), servers=(blue.server, nowhere)))

    served = await count_answers(client, traffic.listen, 20)

    assert served == {blue.name: 20}


async def test_a_server_with_a_name_gets_its_share(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    port = green.server.address.rpartition(":")[2]
    await traffic.route(alone(blue))
    named = replace(green.server, address=f"localhost:{port}")
    await traffic.route(replace(split(blue, green, 100, 2), servers=(blue.server, named)))

    served = await count_answers(client, traffic.listen, 20)

    assert served == {green.name: 20}


async def test_the_split_follows_the_weights(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    # leased: a request that blue rejects is not retried on green
    await traffic.route(replace(split(blue, green, 25), leased=green.name, lease_s=600.0))

    served = await count_answers(client, traffic.listen, 400)

    assert 60 < served[green.name] < 140  # 25 % of 400, 4.6 standard deviations
    assert served.total() == served[green.name] + served[blue.name] == 400


async def test_a_session_keeps_its_server_and_a_growing_share_only_adds_sessions(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    async def greens() -> set[str]:
        sessions = set()
        for session in (f"session-{number}" for number in range(120)):
            answer = await ask(client, traffic.listen, stream=False, headers={"x-session-id": session})
            if answer.server == green.name:
                sessions.add(session)
        return sessions

    seen: set[str] = set()
    for weight in (10, 50, 100):
        await traffic.route(split(blue, green, weight, weight))
        first, second = await greens(), await greens()

        assert first == second
        assert first >= seen
        seen = first
    assert len(seen) == 120


async def test_in_flight_counts_open_requests_of_each_server(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    assert await traffic.in_flight(green.name) is None
    green.mode = "hang"
    await traffic.route(split(blue, green, 100))
    asking = [asyncio.create_task(ask(client, traffic.listen)) for _ in range(3)]
    await until_open(traffic, green.name, 3)

    assert await traffic.in_flight(blue.name) == 0
    assert await traffic.in_flight("never-heard-of") == 0
    for task in asking:
        task.cancel()
    await until_open(traffic, green.name, 0)


async def test_a_route_is_settled_once_each_thread_of_envoy_has_taken_part_in_a_flush_after_it(
    traffic: EnvoyTraffic, blue: Backend, green: Backend
) -> None:
    assert not await traffic.is_settled()

    for number, weight in enumerate((5, 50), start=1):
        await traffic.route(split(blue, green, weight, number))

        assert not await traffic.is_settled()
        await until(traffic.is_settled)


async def test_envoy_survives_the_daemon_and_is_found_again(
    traffic: EnvoyTraffic, unbound: EnvoyPlugin, blue: Backend, green: Backend, tmp_path: Path
) -> None:
    await traffic.route(split(blue, green, 5))
    pid = (traffic.home / "envoy.pid").read_text()
    (traffic.home / "envoy.pid").unlink()

    again = unbound.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=4))
    seen = await again.observe()
    await again.route(split(blue, green, 50, 18))

    assert seen is not None
    assert (seen.weights, seen.epoch, seen.listening) == ({blue.name: 95, green.name: 5}, 3, True)
    assert seen.addresses == {blue.name: blue.server.address, green.name: green.server.address}
    assert int((traffic.home / "envoy.pid").read_text()) == int(pid)
    assert os.getsid(int(pid)) != os.getsid(0)


async def test_a_killed_envoy_restarts_with_the_same_split(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    route = split(blue, green, 100)
    await traffic.route(route)
    pid = int((traffic.home / "envoy.pid").read_text())
    before = files(traffic)
    await kill_envoy(traffic)

    await traffic.keep_alive(route)

    assert files(traffic) == before
    assert int((traffic.home / "envoy.pid").read_text()) != pid
    assert await count_answers(client, traffic.listen, 5) == {green.name: 5}


async def test_rolls_back_a_route_that_envoy_rejects_and_reports_the_reason(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    await traffic.route(alone(blue))
    before = files(traffic)
    nowhere = replace(green.server, address="[fe80::1%nowhere]:80")  # accepted by us, not by Envoy

    with pytest.raises(ActError, match="Envoy refused cds") as refused:
        await traffic.route(replace(alone(blue, 2), servers=(blue.server, nowhere)))

    assert "malformed IP address: fe80::1%nowhere" in str(refused.value)
    assert files(traffic) == before
    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}


async def test_a_failed_first_route_leaves_nothing_behind(traffic: EnvoyTraffic, blue: Backend) -> None:
    nowhere = replace(blue.server, address="[fe80::1%nowhere]:80")

    with pytest.raises(ActError):
        await traffic.route(replace(alone(blue), servers=(nowhere,)))

    assert await traffic.observe() is None
    assert not (traffic.home / "envoy.pid").exists()


@pytest.mark.parametrize("kind", ["rds", "cds", "lds"])
@pytest.mark.parametrize("garbage", [b"", b"{", b'{"version_info": "9.9.9", "resources": [{}]}', b"[1]"])
async def test_a_broken_file_changes_nothing_until_the_next_route_repairs_it(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession, kind: str, garbage: bytes
) -> None:
    await traffic.route(alone(blue))
    traffic.files.path(kind).write_bytes(garbage)

    seen = await traffic.observe()

    assert seen is not None
    assert seen.listening
    assert seen.weights == {blue.name: 100}
    if b"9.9.9" in garbage:
        return  # a mark of a newer daemon
    await traffic.route(alone(blue, 2))
    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}


async def test_the_heartbeat_repairs_a_broken_file_and_a_dead_envoy(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    await traffic.route(alone(blue))
    await traffic.stop()
    for path in files(traffic):
        Path(path).write_bytes(b"{")

    seen = await traffic.observe()
    await traffic.keep_alive(alone(blue))

    assert seen is not None
    assert (seen.weights, seen.listening) == ({}, False)
    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}


async def test_a_port_of_another_process_is_a_problem_and_envoy_is_not_started(
    traffic: EnvoyTraffic, blue: Backend
) -> None:
    host, _, port = traffic.listen.partition(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port may have old connections
        other.bind((host, int(port)))
        other.listen()

        problems = await traffic.problems()
        with pytest.raises(ActError, match=r"process \d+ \(.+\) of user \d+ listens on"):
            await traffic.route(alone(blue))

    assert [problem for problem in problems if traffic.listen in problem]
    assert await traffic.observe() is None
    assert await traffic.problems() == []


async def test_routes_to_a_host_name(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    named = replace(blue.server, address=f"localhost:{blue.port}")

    await traffic.route(replace(alone(blue), servers=(named,)))

    assert await count_answers(client, traffic.listen, 5) == {blue.name: 5}


async def test_a_new_listen_address_changes_the_port(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await traffic.route(alone(blue))
    elsewhere = EnvoyPlugin(listen=f"127.0.0.1:{free_port()}").bind(
        Site(target="chat", state_dir=tmp_path / "chat", epoch=4)
    )

    await elsewhere.route(alone(blue, 2))

    assert await count_answers(client, elsewhere.listen, 5) == {blue.name: 5}


async def test_only_the_owner_may_use_the_admin_socket(traffic: EnvoyTraffic, blue: Backend) -> None:
    await traffic.route(alone(blue))

    assert (traffic.home / "admin.sock").stat().st_mode & 0o777 == 0o600
