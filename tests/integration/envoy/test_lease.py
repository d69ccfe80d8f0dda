import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from tests.integration.envoy.steps import alone
from tests.support.sse_backend import Backend, ask, count_answers, until


def leased(blue: Backend, green: Backend, weight: int, lease_s: float) -> Route:
    return Route(
        number=5,
        servers=(blue.server, green.server),
        weights={blue.name: 100 - weight, green.name: weight},
        fallback=blue.name,
        leased=green.name,
        lease_s=lease_s,
    )


async def until_only(client: aiohttp.ClientSession, traffic: EnvoyTraffic, name: str) -> Counter[str]:
    """Collect the responses until twenty in a row come from `name`."""
    everything: Counter[str] = Counter()
    while True:
        served = await count_answers(client, traffic.listen, 20)
        everything += served
        if served == {name: 20}:
            return everything
        await asyncio.sleep(0.05)


@pytest.mark.smoke
@pytest.mark.parametrize("weight", [30, 100])
async def test_an_expired_lease_sends_all_requests_to_the_fallback(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession, weight: int
) -> None:
    await traffic.route(leased(blue, green, weight, lease_s=1.0))
    sessions = [{"x-session-id": str(number)} for number in range(30)]
    before = [await ask(client, traffic.listen, headers=session) for session in sessions[:10]]

    everything = await until_only(client, traffic, blue.name)
    after = [await ask(client, traffic.listen, headers=session) for session in sessions]
    seen = await traffic.observe()

    assert green.name in {answer.server for answer in before}
    assert set(everything) <= {blue.name, green.name}
    assert {answer.server for answer in after} == {blue.name}
    assert seen is not None
    assert seen.weights == {blue.name: 100 - weight, green.name: weight}  # as in force without the lease


async def test_the_end_of_the_lease_cuts_no_open_stream(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    green.chunks, green.gap_s = 20, 0.1
    await traffic.route(leased(blue, green, 100, lease_s=0.5))
    running = [asyncio.create_task(ask(client, traffic.listen)) for _ in range(5)]

    await until_only(client, traffic, blue.name)
    answers = await asyncio.gather(*running)

    assert [answer.good for answer in answers] == [True] * 5
    assert {answer.server for answer in answers} == {green.name}


@pytest.mark.smoke
async def test_a_renewed_lease_keeps_its_server(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    route = leased(blue, green, 100, lease_s=3.0)
    await traffic.route(route)
    over = asyncio.get_running_loop().time() + 4.5

    served: Counter[str] = Counter()
    while asyncio.get_running_loop().time() < over:
        await traffic.keep_alive(route)
        served += await count_answers(client, traffic.listen, 5)
        await asyncio.sleep(0.05)

    assert set(served) == {green.name}


async def test_renews_a_lease_after_a_third_of_its_duration(
    traffic: EnvoyTraffic, blue: Backend, green: Backend
) -> None:
    route = leased(blue, green, 100, lease_s=60.0)
    await traffic.route(route)
    before = traffic.files.path("rds").stat().st_mtime_ns

    for _ in range(20):
        await traffic.keep_alive(route)

    assert traffic.files.path("rds").stat().st_mtime_ns == before


async def test_renewing_an_expired_lease_restores_it(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    short = leased(blue, green, 100, lease_s=0.2)
    await traffic.route(short)
    await until_only(client, traffic, blue.name)

    await traffic.route(leased(blue, green, 100, lease_s=30.0))

    assert await count_answers(client, traffic.listen, 20) == {green.name: 20}


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("mode", ["503", "reset"])
async def test_retries_failed_requests_of_green_on_blue_with_and_without_a_lease(
    traffic: EnvoyTraffic,
    blue: Backend,
    green: Backend,
    client: aiohttp.ClientSession,
    mode: str,
    expired: bool,
) -> None:
    green.mode = "503" if mode == "503" else "reset"
    await traffic.route(leased(blue, green, 100, lease_s=0.1 if expired else 30.0))
    await asyncio.sleep(0.3 if expired else 0)

    served = await count_answers(client, traffic.listen, 30, stream=True)

    assert served == {blue.name: 30}
    assert bool(green.served[mode]) is not expired


async def test_a_server_that_refuses_connections_costs_no_request(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession
) -> None:
    async with Backend("chat-r2") as green:
        route = leased(blue, green, 50, lease_s=30.0)
    await traffic.route(route)

    assert await count_answers(client, traffic.listen, 60, stream=True) == {blue.name: 60}


async def test_a_failing_fallback_is_not_retried_on_the_canary(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    blue.mode = "503"
    await traffic.route(leased(blue, green, 10, lease_s=30.0))

    served = await count_answers(client, traffic.listen, 200)

    assert served[green.name] < 50  # 10 % of 200, 7 standard deviations
    assert served["503"] == 200 - served[green.name]


@pytest.fixture
async def third() -> AsyncIterator[Backend]:
    async with Backend("chat-r0") as backend:
        yield backend


def leased_of_three(blue: Backend, third: Backend, green: Backend, lease_s: float) -> Route:
    return Route(
        number=5,
        servers=(blue.server, third.server, green.server),
        weights={blue.name: 20, third.name: 20, green.name: 60},
        fallback=blue.name,
        leased=green.name,
        lease_s=lease_s,
    )


async def test_the_end_of_a_lease_spreads_its_share_and_keeps_other_sessions(
    traffic: EnvoyTraffic, blue: Backend, third: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    sessions = [{"x-session-id": str(number)} for number in range(100)]

    async def servers() -> list[str]:
        return [
            (await ask(client, traffic.listen, stream=False, headers=headers)).server for headers in sessions
        ]

    async def spent() -> bool:
        return green.name not in await count_answers(client, traffic.listen, 30)

    await traffic.route(leased_of_three(blue, third, green, lease_s=30.0))
    before = await servers()
    await traffic.route(leased_of_three(blue, third, green, lease_s=0.2))
    await until(spent)
    after = await servers()
    moved = Counter(now for was, now in zip(before, after, strict=True) if was == green.name)

    assert all(was in (now, green.name) for was, now in zip(before, after, strict=True))
    assert 40 < moved.total() < 80  # 60 % of 100, 4 standard deviations
    assert min(moved[blue.name], moved[third.name]) > 10  # half of each, 4.6 standard deviations
    assert moved.total() == moved[blue.name] + moved[third.name]


@pytest.mark.parametrize("expired", [False, True])
async def test_retries_of_a_failing_server_spread_over_the_remaining_servers(
    traffic: EnvoyTraffic,
    blue: Backend,
    third: Backend,
    green: Backend,
    client: aiohttp.ClientSession,
    expired: bool,
) -> None:
    green.mode = "503"
    blue.mode = "503" if expired else "ok"
    await traffic.route(leased_of_three(blue, third, green, lease_s=0.1 if expired else 30.0))
    await asyncio.sleep(0.3 if expired else 0)

    served = await count_answers(client, traffic.listen, 200)

    assert served.total() == served[third.name] + served[blue.name]
    assert served[third.name] == 200 if expired else 60 < served[third.name] < 140
    assert bool(green.served["503"]) is not expired


async def test_clients_cannot_expire_the_lease(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    await traffic.route(leased(blue, green, 100, lease_s=30.0))

    answers = [
        await ask(
            client, traffic.listen, headers={"x-flettner-lease": "expired", "x-flettner-request": "mine"}
        )
        for _ in range(5)
    ]

    assert {answer.server for answer in answers} == {green.name}
    assert "mine" not in {headers["x-flettner-request"] for headers in green.headers}


async def test_setting_the_clock_back_does_not_extend_the_lease(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    route = leased(blue, green, 100, lease_s=30.0)
    await traffic.route(route)
    file = traffic.files.path("rds")
    content = json.loads(file.read_bytes())
    for entry in content["resources"][0]["virtual_hosts"][0]["routes"]:
        for metadata in entry.get("metadata", {}).get("filter_metadata", {}).values():
            metadata["lease_expires_ms"] += 3_600_000  # as it would look an hour earlier
    content["version_info"] = "3.5.99"
    (fresh := file.with_name(".fresh")).write_text(json.dumps(content))
    fresh.rename(file)

    await until_only(client, traffic, blue.name)
    await traffic.keep_alive(route)

    assert await count_answers(client, traffic.listen, 20) == {green.name: 20}


async def test_an_ended_lease_sends_all_requests_to_the_remaining_servers(
    traffic: EnvoyTraffic, unbound: EnvoyPlugin, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    route = leased(blue, green, 100, lease_s=30.0)
    await traffic.route(route)
    clean_up = unbound.bind(Site(target="chat", state_dir=traffic.home.parent / "chat", epoch=0))

    ended = [await clean_up.end_lease(), await clean_up.end_lease()]
    without = await count_answers(client, traffic.listen, 20)
    seen = await traffic.observe()
    await traffic.keep_alive(route)
    renewed = await count_answers(client, traffic.listen, 20)

    assert ended == [True, True]
    assert without == {blue.name: 20}
    assert seen is not None
    assert (seen.weights, seen.epoch) == ({blue.name: 0, green.name: 100}, 3)
    assert renewed == {green.name: 20}


async def test_ends_the_lease_in_the_files_of_a_dead_proxy(
    traffic: EnvoyTraffic, blue: Backend, green: Backend, client: aiohttp.ClientSession
) -> None:
    route = leased(blue, green, 100, lease_s=30.0)
    await traffic.route(route)
    await traffic.stop()

    assert await traffic.end_lease()

    assert '"lease_expires_ms":0' in traffic.files.path("rds").read_text().replace(" ", "")
    await traffic.keep_alive(route)
    assert await count_answers(client, traffic.listen, 20) == {green.name: 20}


async def test_writes_nothing_without_a_lease(traffic: EnvoyTraffic, blue: Backend) -> None:
    assert not await traffic.end_lease()
    await traffic.route(alone(blue))
    before = traffic.files.path("rds").read_bytes()

    assert not await traffic.end_lease()

    assert traffic.files.path("rds").read_bytes() == before


async def test_abandons_an_unconfirmed_renewal_before_the_lease_expires(
    traffic: EnvoyTraffic, blue: Backend, green: Backend
) -> None:
    route = leased(blue, green, 100, lease_s=5.0)
    await traffic.route(route)
    seen = traffic.files.path("rds").parent
    seen.rename(seen.with_name("seen"))
    shutil.copytree(seen.with_name("seen"), seen)  # Envoy watches the original folder
    await asyncio.sleep(2.0)

    with pytest.raises(ActError, match=r"did not confirm rds .* in 1.66667 s"):
        await traffic.keep_alive(route)
