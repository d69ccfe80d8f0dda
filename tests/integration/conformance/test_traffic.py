"""The conformance suite of all proxies: real ones and the fake."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.actuators.envoy_deployment.traffic import DeploymentTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site, Traffic
from tests.support.fake_traffic import FakeTraffic
from tests.support.gateway.rig import GatewayRig, PlacedTraffic
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.shared_proxy import SharedEnvoyPod
from tests.support.ports import free_port
from tests.support.sse_backend import Answer, Backend, ask, count_answers, until

BLUE = Server(name="chat-r1", setting={"max_num_seqs": 4}, address="127.0.0.1:9")
GREEN = Server(name="chat-r2", setting={"max_num_seqs": 16}, address="127.0.0.1:19")
ALONE = Route(number=1, servers=(BLUE,), weights={BLUE.name: 100}, fallback=BLUE.name)
CANARY = Route(
    number=2,
    servers=(BLUE, GREEN),
    weights={BLUE.name: 95, GREEN.name: 5},
    fallback=BLUE.name,
    leased=GREEN.name,
    lease_s=30.0,
)

OLDER = Server(name="chat-r0", setting={"max_num_seqs": 4}, address="127.0.0.1:29")
THREE = Route(
    number=3,
    servers=(BLUE, OLDER, GREEN),
    weights={BLUE.name: 40, OLDER.name: 20, GREEN.name: 40},
    fallback=BLUE.name,
    leased=GREEN.name,
    lease_s=30.0,
)
CLOSED = Route(
    number=4, servers=(BLUE, GREEN), weights={BLUE.name: 0, GREEN.name: 0}, fallback="", closed_s=20.0
)

Bind = Callable[[int], Traffic]  # by epoch
Act = Callable[[Route], Awaitable[None]]


KINDS = ["fake", "envoy", "envoy_deployment", "gateway"]


@pytest.fixture(params=KINDS)
async def bind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bind]:
    async with AsyncExitStack() as stack:
        proxy: FakeTraffic | EnvoyPlugin | SharedEnvoyPod | GatewayRig = FakeTraffic()
        if request.param == "envoy":
            proxy = EnvoyPlugin(listen=f"127.0.0.1:{free_port()}", hold_s=1.0)
        elif request.param == "envoy_deployment":
            proxy = request.getfixturevalue("envoy_pod")
        elif request.param == "gateway":
            proxy = await stack.enter_async_context(GatewayRig(request.getfixturevalue("own_cluster")))
        yield lambda epoch: proxy.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=epoch))
        await proxy.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=0)).stop()


async def test_observes_none_before_the_first_route(bind: Bind) -> None:
    traffic = bind(1)

    assert not await traffic.problems()
    assert await traffic.observe() is None
    assert await traffic.in_flight(BLUE.name) is None


async def test_observes_the_written_route(bind: Bind) -> None:
    traffic = bind(1)

    await traffic.route(ALONE)
    await traffic.route(CANARY)
    seen = await traffic.observe()

    assert seen is not None
    assert seen.weights == {BLUE.name: 95, GREEN.name: 5}
    assert seen.addresses == {BLUE.name: BLUE.address, GREEN.name: GREEN.address}
    assert (seen.epoch, seen.leased, seen.listening) == (1, GREEN.name, True)
    assert await traffic.in_flight(GREEN.name) == (0 if traffic.counts_requests else None)


async def test_a_repeated_route_is_accepted(bind: Bind) -> None:
    traffic = bind(1)
    await traffic.route(CANARY)
    once = await traffic.observe()

    await traffic.route(CANARY)
    await traffic.keep_alive(CANARY)

    assert await traffic.observe() == once


async def test_keeps_a_server_of_weight_zero_and_removes_an_unlisted_one(bind: Bind) -> None:
    traffic = bind(1)
    resting = replace(CANARY, weights={BLUE.name: 100, GREEN.name: 0}, leased=None)

    await traffic.route(resting)
    rests = await traffic.observe()
    await traffic.route(replace(ALONE, number=3))
    gone = await traffic.observe()

    assert rests is not None
    assert gone is not None
    assert set(rests.addresses) == {BLUE.name, GREEN.name}
    assert set(gone.addresses) == {BLUE.name}


async def test_the_proxy_survives_its_daemon(bind: Bind) -> None:
    await bind(1).route(CANARY)
    next_daemon = bind(2)

    seen = await next_daemon.observe()
    await next_daemon.keep_alive(CANARY)
    await next_daemon.route(replace(ALONE, number=3))
    later = await next_daemon.observe()

    assert seen is not None
    assert later is not None
    assert (seen.epoch, seen.weights) == (1, CANARY.weights)
    assert (later.epoch, later.weights) == (2, ALONE.weights)


async def test_the_first_heartbeat_of_a_newer_daemon_fences_the_older_one(bind: Bind) -> None:
    older, newer = bind(1), bind(2)
    await older.route(ALONE)

    await newer.keep_alive(ALONE)
    seen = await newer.observe()

    assert seen is not None
    assert (seen.epoch, seen.weights) == (2, ALONE.weights)
    with pytest.raises(FencedError):
        await older.route(replace(CANARY, number=3))


async def test_an_older_daemon_is_fenced(bind: Bind) -> None:
    older, newer = bind(1), bind(2)
    await older.route(ALONE)
    await newer.route(replace(ALONE, number=2))
    before = await newer.observe()

    acts: list[Act] = [older.route, older.keep_alive]
    for act in acts:
        with pytest.raises(FencedError):
            await act(replace(CANARY, number=3))

    assert await newer.observe() == before


@pytest.mark.parametrize(
    "refused",
    [
        replace(CANARY, weights={BLUE.name: 95, GREEN.name: 6}),
        replace(CANARY, weights={BLUE.name: 125, GREEN.name: -25}),
        replace(CANARY, weights={BLUE.name: 95.0, GREEN.name: 5.0}),  # type: ignore[dict-item]
        replace(CANARY, weights={BLUE.name: 95, "chat-r3": 5}),
        replace(CANARY, weights={}),
        replace(CANARY, fallback="chat-r3"),
        replace(CANARY, leased=BLUE.name),
        replace(CANARY, lease_s=0),
        replace(CLOSED, closed_s=0.0),
        replace(CLOSED, closed_s=-1.0),
        replace(CLOSED, weights={}),
        replace(CLOSED, weights={BLUE.name: 0}),
        replace(CLOSED, fallback=BLUE.name),
        replace(CLOSED, leased=GREEN.name, lease_s=3.0),
        replace(CANARY, closed_s=20.0),
    ],
    ids=lambda r: f"{r.weights} {r.fallback} {r.leased} {r.lease_s} {r.closed_s}",
)
async def test_a_rejected_route_changes_nothing(bind: Bind, refused: Route) -> None:
    traffic = bind(1)
    await traffic.route(ALONE)
    before = await traffic.observe()

    acts: list[Act] = [traffic.route, traffic.keep_alive]
    for act in acts:
        with pytest.raises(ActError):
            await act(replace(refused, number=9))

    assert await traffic.observe() == before


async def test_keep_alive_applies_a_missing_route_and_reverts_no_later_one(bind: Bind) -> None:
    traffic = bind(1)

    await traffic.keep_alive(ALONE)
    await traffic.route(CANARY)
    await traffic.keep_alive(ALONE)
    seen = await traffic.observe()

    assert seen is not None
    assert seen.weights == CANARY.weights


async def test_a_closed_split_has_no_weight_and_can_be_reopened(bind: Bind) -> None:
    traffic = bind(1)
    await traffic.route(ALONE)

    await traffic.route(CLOSED)
    await traffic.keep_alive(CLOSED)
    shut = await traffic.observe()
    await traffic.route(replace(ALONE, number=5))
    opened = await traffic.observe()

    assert shut is not None
    assert opened is not None
    assert shut.weights == {BLUE.name: 0, GREEN.name: 0}
    assert set(shut.addresses) == {BLUE.name, GREEN.name}
    assert (shut.leased, shut.listening) == (None, True)
    assert opened.weights == ALONE.weights


async def test_the_first_split_may_be_closed(bind: Bind) -> None:
    traffic = bind(1)

    await traffic.keep_alive(CLOSED)
    seen = await traffic.observe()

    assert seen is not None
    assert seen.weights == CLOSED.weights


async def test_a_split_stays_closed_under_a_new_daemon(bind: Bind) -> None:
    await bind(1).route(CLOSED)
    next_daemon = bind(2)

    seen = await next_daemon.observe()
    await next_daemon.keep_alive(CLOSED)

    assert seen is not None
    assert await next_daemon.observe() in (seen, replace(seen, epoch=2))


async def test_observes_one_leased_server_among_three(bind: Bind) -> None:
    traffic = bind(1)

    await traffic.route(THREE)
    seen = await traffic.observe()

    assert seen is not None
    assert (seen.weights, seen.leased) == (THREE.weights, GREEN.name)
    assert set(seen.addresses) == {BLUE.name, OLDER.name, GREEN.name}


async def test_the_fake_fails_once_on_demand_and_expires_its_lease(tmp_path: Path) -> None:
    fake = FakeTraffic()
    traffic = fake.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=1))
    fake.next_error = ActError("as told")

    with pytest.raises(ActError, match="as told"):
        await traffic.route(ALONE)
    await traffic.route(replace(CANARY, lease_s=1e-9))

    assert traffic.weights_in_force == {BLUE.name: 100}
    assert [name for name, _ in fake.calls] == ["route", "route"]


def _closed(traffic: Traffic) -> str:
    """The status of a closed split; what a gateway answers is its own choice."""
    return "500" if isinstance(traffic, PlacedTraffic) else "503"


class Clients:
    """Clients of a proxy with real servers; for the fake, the computed outcome."""

    def __init__(self, backends: Sequence[Backend], session: aiohttp.ClientSession, host: str) -> None:
        self.backends = backends
        self.host = host  # of the servers, as the proxy reaches them
        self.session = session

    def placed(self, route: Route) -> Route:
        """With its servers where the real ones are."""
        address = {backend.name: f"{self.host}:{backend.port}" for backend in self.backends}
        servers = tuple(replace(server, address=address[server.name]) for server in route.servers)
        return replace(route, servers=servers)

    async def served(self, traffic: Traffic) -> dict[str, int]:
        """Percent of responses by server name; rejected requests count under their status."""
        if isinstance(traffic, FakeTraffic):
            return traffic.weights_in_force or {"503": 100}
        assert isinstance(traffic, EnvoyTraffic | DeploymentTraffic | PlacedTraffic)
        return dict(await count_answers(self.session, traffic.listen, 100))

    async def hold(self, traffic: Traffic, name: str) -> "asyncio.Task[Answer] | None":
        """A slow stream."""
        if isinstance(traffic, FakeTraffic):
            traffic.in_flight_of[name] = 1
            return None
        assert isinstance(traffic, EnvoyTraffic | DeploymentTraffic | PlacedTraffic)
        return asyncio.create_task(ask(self.session, traffic.listen))


@pytest.fixture
async def clients(request: pytest.FixtureRequest) -> AsyncIterator[Clients]:
    host = "127.0.0.1"
    if request.node.callspec.params["bind"] in {"envoy_deployment", "gateway"}:
        cluster: Cluster = request.getfixturevalue("own_cluster")
        host = cluster.network.address
    async with AsyncExitStack() as stack:
        names = (BLUE.name, OLDER.name, GREEN.name)
        servers = [Backend(name, chunks=20, gap_s=0.05, host=host) for name in names]
        backends = [await stack.enter_async_context(server) for server in servers]
        yield Clients(backends, await stack.enter_async_context(aiohttp.ClientSession()), host)


async def test_a_closed_split_rejects_all_requests_until_it_is_reopened(bind: Bind, clients: Clients) -> None:
    traffic = bind(1)

    await traffic.route(clients.placed(CLOSED))
    refused = await clients.served(traffic)
    await traffic.route(clients.placed(replace(ALONE, number=5)))

    assert refused == {_closed(traffic): 100}
    assert await clients.served(traffic) == {BLUE.name: 100}


async def test_an_open_stream_survives_closing(bind: Bind, clients: Clients) -> None:
    traffic = bind(1)
    await traffic.route(clients.placed(ALONE))
    stream = await clients.hold(traffic, BLUE.name)

    async def is_open() -> bool:
        if traffic.counts_requests:
            return await traffic.in_flight(BLUE.name) == 1
        return clients.backends[0].served["ok"] == 1

    await until(is_open)

    await traffic.route(clients.placed(CLOSED))
    still_open = await traffic.in_flight(BLUE.name)

    assert await clients.served(traffic) == {_closed(traffic): 100}
    assert still_open == (1 if traffic.counts_requests else None)
    assert stream is None or (await stream).good


async def test_an_expired_lease_is_spread_over_the_remaining_servers(bind: Bind, clients: Clients) -> None:
    traffic = bind(1)
    await traffic.route(clients.placed(replace(THREE, lease_s=0.1)))

    async def is_spent() -> bool:
        return GREEN.name not in await clients.served(traffic)

    await until(is_spent)
    served = await clients.served(traffic)
    seen = await traffic.observe()

    assert set(served) == {BLUE.name, OLDER.name}
    assert 45 < served[BLUE.name] < 90  # 67 of 100, 4.6 standard deviations
    assert seen is not None
    assert seen.weights == THREE.weights  # as in force without the lease
