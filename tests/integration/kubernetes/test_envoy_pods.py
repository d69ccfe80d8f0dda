"""Envoy pods: when they are ready, what they serve, and the records of their requests."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy_deployment.plugin import EnvoyDeploymentPlugin
from flettner.actuators.envoy_deployment.traffic import DeploymentTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.ports import Site
from flettner.sensors.proxy_requests.plugin import ProxyRequests
from tests.integration.envoy.test_proxy_requests import SensorOutput, listening
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import ROLE
from tests.support.kubernetes.manifests import rule
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY, create_proxy, proxy_pods
from tests.support.sse_backend import Backend, ask, count_answers, until

pytestmark = pytest.mark.timeout(180)

READ = ["get", "list", "watch"]


@dataclass
class Pods:
    """Two Envoy pods and one server on this host."""

    here: Namespace
    blue: Backend
    kubeconfig: Path
    state_dir: Path

    def bind(self, epoch: int = 1, *, confirm_s: float = 60.0, hold_requests: int = 512) -> DeploymentTraffic:
        """Pods of a busy machine take their time to start. They hold for longer than a test takes."""
        plugin = EnvoyDeploymentPlugin(
            kubeconfig=str(self.kubeconfig), confirm_s=confirm_s, hold_s=300.0, hold_requests=hold_requests
        )
        return plugin.bind(Site(target="chat", state_dir=self.state_dir, epoch=epoch))

    @property
    def route(self) -> Route:
        server = replace(self.blue.server, address=f"{self.blue.host}:{self.blue.port}")
        return Route(number=1, servers=(server,), weights={server.name: 100}, fallback=server.name)

    @property
    def closed(self) -> Route:
        return replace(self.route, number=2, weights={self.blue.name: 0}, fallback="", closed_s=41.2)

    async def serving(self, hold_requests: int = 512) -> DeploymentTraffic:
        traffic = self.bind(hold_requests=hold_requests)
        await traffic.route(self.route)
        await self.here.available(PROXY)
        return traffic

    async def listeners(self) -> list[str]:
        return [f"{pod['status']['podIP']}:8080" for pod in await proxy_pods(self.here)]

    def sensor(self) -> ProxyRequests:
        return ProxyRequests(deployment=PROXY, kubeconfig=str(self.kubeconfig), every_s=0.1)


@pytest.fixture
async def pods(here: Namespace, tmp_path: Path) -> AsyncIterator[Pods]:
    """One on each of two nodes."""
    user = await here.user("daemon", *ROLE)
    await here.add_node()
    await create_proxy(here, cpu="40")
    async with Backend("blue", chunks=20, gap_s=0.05, host=here.cluster.network.address) as blue:
        yield Pods(here, blue, user, tmp_path)


@asynccontextmanager
async def counting(pods: Pods) -> AsyncIterator[SensorOutput]:
    received = SensorOutput(pods.state_dir / "chat")
    async with listening(pods.sensor(), received):
        await received.until_state(("proxy_requests", True))
        yield received


@pytest.mark.smoke
async def test_pods_get_ready_once_a_route_is_published_and_serve_it(pods: Pods) -> None:
    traffic = pods.bind()
    before = [pod["status"]["conditions"] for pod in await proxy_pods(pods.here)]

    await traffic.route(pods.route)
    await pods.here.available(PROXY)
    async with aiohttp.ClientSession() as session:
        served = [await count_answers(session, listener, 10) for listener in await pods.listeners()]

    assert not any(_is_ready(conditions) for conditions in before)
    assert served == [{"blue": 10}, {"blue": 10}]


async def test_requests_of_all_pods_count_also_those_of_a_pod_that_ends(pods: Pods) -> None:
    traffic = await pods.serving()
    async with counting(pods) as received, aiohttp.ClientSession() as session:
        streams = [
            asyncio.create_task(ask(session, listener))
            for listener in await pods.listeners()
            for _ in range(3)
        ]

        async def all_open() -> bool:
            return await traffic.in_flight("blue") == 6

        await until(all_open)
        ending = (await proxy_pods(pods.here))[0]["metadata"]["name"]
        await pods.here.api.delete(pods.here.path("pods", ending))
        answers = await asyncio.gather(*streams)
        await received.until_counted(6)
        await pods.here.gone("pods", ending)
        await asyncio.sleep(3.0)

        assert all(answer.good for answer in answers)
        assert received.counts == {("blue", "ok"): 6}
        assert received.states == [("proxy_requests", True)]


async def test_a_killed_pod_makes_the_records_incomplete(pods: Pods) -> None:
    await pods.serving()
    async with counting(pods) as received:
        pods.here.node.pod(PROXY).container().signal(signal.SIGKILL)

        await received.until_state(*[("proxy_requests", state) for state in (True, False, True)])


async def test_a_new_pod_counts_from_its_first_request_on(pods: Pods) -> None:
    await pods.serving()
    async with counting(pods) as received, aiohttp.ClientSession() as session:
        for listener in await pods.listeners():
            await count_answers(session, listener, 5)
        await received.until_counted(10)
        await pods.here.add_node()
        await pods.here.api.patch(pods.here.path("deployments", PROXY), {"spec": {"replicas": 3}})
        await pods.here.available(PROXY)
        for listener in await pods.listeners():
            await count_answers(session, listener, 5)
        await received.until_counted(25)

        assert received.counts == {("blue", "ok"): 25}


async def test_a_route_that_envoy_refuses_is_taken_back(pods: Pods) -> None:
    older = await pods.serving()
    newer = pods.bind(epoch=2)
    [server] = pods.route.servers
    broken = replace(pods.route, number=2, servers=(replace(server, address="nowhere"),))

    with pytest.raises(ActError, match=rf"Envoy of the pod {PROXY}-.* refused the route: .*nowhere"):
        await newer.route(broken)

    seen = await newer.observe()
    assert seen is not None
    assert (seen.epoch, seen.addresses) == (2, {"blue": server.address})
    with pytest.raises(FencedError):
        await older.route(pods.route)


async def test_a_ready_pod_that_does_not_answer_is_named_and_takes_the_route_later(pods: Pods) -> None:
    await pods.serving()
    traffic = pods.bind(confirm_s=1.0)
    stuck = pods.here.node.pod(PROXY)
    stuck.container().signal(signal.SIGSTOP)

    with pytest.raises(ActError, match=rf"not in force after 1 s in .*{stuck.name} \(no answer"):
        await traffic.route(replace(pods.route, number=2))
    stuck.container().signal(signal.SIGCONT)

    await pods.bind().route(replace(pods.route, number=2))


async def test_a_deleted_config_map_changes_nothing_and_is_published_again(pods: Pods) -> None:
    traffic = await pods.serving()
    await pods.here.api.delete(pods.here.path("configmaps", f"{PROXY}-chat"))
    next_daemon = pods.bind(epoch=2)

    async with aiohttp.ClientSession() as session:
        served = [await count_answers(session, listener, 10) for listener in await pods.listeners()]
    unknown = await traffic.observe()
    await next_daemon.keep_alive(pods.route)

    assert served == [{"blue": 10}, {"blue": 10}]
    assert unknown is None
    assert await next_daemon.observe() is not None


async def test_without_the_api_server_pods_serve_on_and_green_loses_its_share(pods: Pods) -> None:
    traffic = await pods.serving()
    listeners = await pods.listeners()
    async with (
        Backend("green", host=pods.blue.host) as green,
        aiohttp.ClientSession() as session,
    ):
        [blue] = pods.route.servers
        servers = (blue, replace(green.server, address=f"{green.host}:{green.port}"))
        weights = {"blue": 50, "green": 50}
        canary = Route(
            number=2, servers=servers, weights=weights, fallback="blue", leased="green", lease_s=20.0
        )
        await traffic.route(canary)
        shared = [await count_answers(session, listener, 50) for listener in listeners]
        pods.here.cluster.stop_api()
        try:

            async def is_blue_alone() -> bool:
                return [await count_answers(session, listener, 50) for listener in listeners] == [
                    {"blue": 50}
                ] * 2

            await until(is_blue_alone)
        finally:
            pods.here.cluster.start_api()
            pods.here.cluster.wait()

    assert all(counts.keys() == {"blue", "green"} for counts in shared)


async def test_each_pod_holds_new_requests_up_to_the_bound_while_no_server_serves(pods: Pods) -> None:
    traffic = await pods.serving(hold_requests=5)
    listeners = await pods.listeners()
    async with aiohttp.ClientSession() as session:
        await traffic.route(pods.closed)
        asking = [asyncio.create_task(ask(session, listener)) for listener in listeners for _ in range(8)]

        async def refused_beyond_the_bound() -> bool:
            return sum(task.done() for task in asking) == 6

        await until(refused_beyond_the_bound)
        reached = sum(pods.blue.served.values())
        await traffic.route(replace(pods.route, number=3))
        answers = await asyncio.gather(*asking)

    assert reached == 0
    assert Counter(answer.status for answer in answers) == {200: 10, 503: 6}
    assert all(answer.good for answer in answers if answer.status == 200)


async def test_a_lost_node_takes_its_pod_away_and_no_other(pods: Pods) -> None:
    traffic = await pods.serving()
    lost, remaining = pods.here.nodes
    address = remaining.pod(PROXY).address

    await lost.lose()

    async def is_confirmed() -> bool:
        try:
            await traffic.route(replace(pods.route, number=2))
        except ActError:  # until the cluster has noticed
            return False
        return True

    await until(is_confirmed)
    async with aiohttp.ClientSession() as session:
        assert await count_answers(session, f"{address}:8080", 10) == {"blue": 10}
    assert await traffic.in_flight("blue") == 0


async def test_a_missing_deployment_and_a_missing_right_are_problems(here: Namespace, tmp_path: Path) -> None:
    user = await here.user(
        "reader", rule(["apps"], ["deployments"], READ), rule([""], ["pods", "configmaps"], READ)
    )
    traffic = EnvoyDeploymentPlugin(kubeconfig=str(user)).bind(
        Site(target="chat", state_dir=tmp_path, epoch=1)
    )

    missing = list(await traffic.problems())
    await create_proxy(here)

    async def forbidden() -> str:
        try:
            await traffic.problems()
        except ActError as error:
            return error.why
        return ""

    async def is_forbidden() -> bool:
        return bool(await forbidden())

    await until(is_forbidden)

    assert missing == [
        f"there is no Deployment {PROXY} of Envoys: create it as examples/kubernetes.yaml does"
    ]
    assert "give flettner's Role this right" in await forbidden()


def _is_ready(conditions: list[Json]) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
