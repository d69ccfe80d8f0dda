"""The gateway plugin over real pods: what people wrote stays, and whose edits win."""

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flettner.actuators.gateway.guard import Guard
from flettner.actuators.gateway.guard_sign import GuardSign
from flettner.actuators.gateway.plugin import GatewayOptions
from flettner.actuators.gateway.traffic import GatewayTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.primitives.wall_clock import utc_now
from tests.support.gateway.stand_in import Gateway
from tests.support.kubernetes.api import ApiError, Json
from tests.support.kubernetes.engines import GREEN, bind, serve
from tests.support.kubernetes.gateway_site import DAEMON, GUARD, MANIFESTS
from tests.support.kubernetes.manifests import rule
from tests.support.kubernetes.namespace import Namespace

pytestmark = pytest.mark.timeout(180)

GROUP = "gateway.networking.k8s.io"
READS = rule([""], ["services", "pods"], ["get", "list", "watch"])
CHAT: Json = {
    "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
    "backendRefs": [{"name": "vllm", "port": 80, "weight": 1}],
}
DOCS: Json = {
    "matches": [{"path": {"type": "PathPrefix", "value": "/docs"}}],
    "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}}],
    "backendRefs": [{"name": "docs", "port": 80, "weight": 3}],
}


@dataclass
class World:
    """An adopted Deployment `vllm` behind a Service of people, a green beside it, and an HTTPRoute."""

    here: Namespace
    gateway: Gateway
    traffic: GatewayTraffic
    blue: Server
    green: Server
    end_guard: asyncio.Event

    def alone(self, number: int, *others: Server) -> Route:
        return Route(
            number=number,
            servers=(self.blue, *others),
            weights={self.blue.name: 100, **{other.name: 0 for other in others}},
            fallback=self.blue.name,
        )

    def canary(self, number: int, lease_s: float = 30.0) -> Route:
        return Route(
            number=number,
            servers=(self.blue, self.green),
            weights={self.blue.name: 95, self.green.name: 5},
            fallback=self.blue.name,
            leased=self.green.name,
            lease_s=lease_s,
        )

    async def set_backends(self, *backends: Json) -> None:
        """As a person does."""
        spec = deepcopy((await self.gateway.get("chat"))["spec"])
        spec["rules"][0]["backendRefs"] = list(backends)
        await self.here.api.patch(self.gateway.path("chat"), {"spec": spec})


@pytest.fixture
async def world(here: Namespace, tmp_path: Path) -> AsyncIterator[World]:
    await serve(here)
    for name, app in (("vllm", "vllm"), ("docs", "docs")):
        spec = {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8000}]}
        await here.create("services", {"metadata": {"name": name}, "spec": spec})
    async with Gateway(here) as gateway:
        await gateway.create("chat", CHAT, DOCS)
        engine = await bind(here, tmp_path)
        [blue] = await engine.observe()
        green = await engine.launch(GREEN, 60)
        guard_user = await here.user("guard", *GUARD)
        guard = Guard(client=KubernetesClient(kubeconfig=str(guard_user)), now=utc_now, beat_s=0.2)
        stopping = asyncio.Event()
        task = asyncio.create_task(guard.run(stopping))
        daemon = await here.user("gateway", *DAEMON, READS)
        options = GatewayOptions(route="chat", rule="0", kubeconfig=str(daemon), settle_s=0.1)
        traffic = options.bind(Site(target="chat", state_dir=tmp_path, epoch=1))
        yield World(here, gateway, traffic, blue, green, stopping)
        stopping.set()
        await task


async def test_the_example_is_accepted(here: Namespace) -> None:
    for manifest in MANIFESTS:
        await here.create(f"{manifest['kind'].lower()}s", manifest)


@pytest.mark.parametrize(
    "broken",
    [
        {"backendRefs": [{"name": "vllm", "weight": 1}]},
        {"filters": [{"type": "RequestRedirect", "requestRedirect": {}}]},
        {"backendRefs": [{"name": "vllm", "port": 80, "weight": -1}]},
    ],
    ids=["no port", "a redirect with backends", "a negative weight"],
)
async def test_the_api_server_refuses_routes_that_the_gateway_api_refuses(
    here: Namespace, broken: Json
) -> None:
    """Every write of flettner in these tests is checked so."""
    async with Gateway(here) as gateway:
        with pytest.raises(ApiError) as refused:
            await gateway.create("chat", CHAT | broken)

    assert refused.value.status == 422


async def test_a_target_at_rest_keeps_the_route_as_people_wrote_it(world: World) -> None:
    before = (await world.gateway.get("chat"))["spec"]

    assert await world.traffic.problems() == []
    await world.traffic.route(world.alone(1))
    at_rest = (await world.gateway.get("chat"))["spec"]
    await world.traffic.route(world.canary(2))
    split = (await world.gateway.get("chat"))["spec"]
    await world.traffic.route(world.alone(3, world.green))
    again = (await world.gateway.get("chat"))["spec"]

    assert at_rest == before
    assert [ref["weight"] for ref in split["rules"][0]["backendRefs"]] == [95, 5]
    assert "vllm" not in {ref["name"] for ref in split["rules"][0]["backendRefs"]}
    split["rules"][0]["backendRefs"] = before["rules"][0]["backendRefs"]
    assert split == before
    assert again == before


async def test_the_guard_puts_back_what_people_wrote_and_a_daemon_that_returns_goes_on(world: World) -> None:
    await world.traffic.route(world.alone(1))

    await world.traffic.route(world.canary(2, lease_s=2.0))
    split = await world.gateway.backends("chat")
    await world.here.eventually(lambda: _has(world, {"vllm": 1}))
    seen = await world.traffic.observe()
    await world.traffic.keep_alive(replace(world.canary(2, lease_s=2.0)))

    assert seen is not None
    assert seen.weights == world.canary(2).weights
    assert await world.gateway.backends("chat") == split


async def test_a_lease_that_is_renewed_stays(world: World) -> None:
    canary = world.canary(2, lease_s=3.0)
    await world.traffic.route(canary)
    split = await world.gateway.backends("chat")

    for _ in range(20):
        await world.traffic.keep_alive(canary)
        await asyncio.sleep(0.3)

    assert await world.gateway.backends("chat") == split


async def test_an_edit_of_the_weights_is_reported_and_left(world: World) -> None:
    await world.traffic.route(world.canary(1, lease_s=2.0))
    split = (await world.gateway.get("chat"))["spec"]["rules"][0]["backendRefs"]
    edited = [{**split[0], "weight": 50}, {**split[1], "weight": 50}]
    await world.set_backends(*edited)

    for act in (world.traffic.route, world.traffic.keep_alive):
        with pytest.raises(ActError, match="drift: a third party"):
            await act(world.canary(2))
    await asyncio.sleep(4.0)  # longer than the lease: the guard leaves it too

    assert list((await world.gateway.backends("chat")).values()) == [50, 50]
    await world.set_backends(*split)
    await world.traffic.route(world.alone(3))
    assert await world.gateway.backends("chat") == {"vllm": 1}


async def test_a_reset_to_the_manifest_ends_a_canary_without_a_fight(world: World) -> None:
    await world.traffic.route(world.canary(1))
    await world.set_backends(*CHAT["backendRefs"])

    with pytest.raises(ActError, match="drift"):
        await world.traffic.route(world.canary(2))
    await world.traffic.route(world.alone(3))

    assert await world.gateway.backends("chat") == {"vllm": 1}


async def test_a_backend_that_the_gateway_refuses_is_taken_back(world: World) -> None:
    await world.traffic.route(world.alone(1))
    world.gateway.refuses = world.green.address.partition(".")[0]
    world.traffic.confirm_s = 2.0

    with pytest.raises(ActError, match="BackendNotFound"):
        await world.traffic.route(world.canary(2))

    assert await world.gateway.backends("chat") == {"vllm": 1}


async def test_a_service_that_also_selects_other_pods_is_refused(world: World) -> None:
    await world.here.api.patch(
        world.here.path("services", "vllm"), {"spec": {"selector": {"app": None, "x": "y"}}}
    )
    pods = await world.here.list("pods")
    for pod in pods:
        path = world.here.path("pods", pod["metadata"]["name"])
        await world.here.api.patch(path, {"metadata": {"labels": {"x": "y"}}})

    with pytest.raises(ActError, match="also selects pods that are not of the target"):
        await world.traffic.route(world.alone(1))

    assert await world.traffic.observe() is None


async def test_no_lease_without_a_guard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_: GuardSign, within_s: float) -> bool:
        del within_s
        return False

    world.end_guard.set()
    monkeypatch.setattr(GuardSign, "wait", silent)

    problems = await world.traffic.problems()
    with pytest.raises(ActError, match="no guard gives a sign of life"):
        await world.traffic.route(world.canary(1))

    assert any("no guard" in problem for problem in problems)
    assert await world.gateway.backends("chat") == {"vllm": 1}


async def test_a_daemon_that_returns_to_a_canary_starts_without_a_guard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: GuardSign, within_s: float) -> bool:
        del within_s
        return False

    await world.traffic.route(world.canary(1))
    world.end_guard.set()
    monkeypatch.setattr(GuardSign, "wait", silent)

    assert await world.traffic.problems() == []


async def test_the_rule_is_given_back_at_the_end(world: World) -> None:
    before = await world.gateway.get("chat")
    await world.traffic.route(world.canary(1))

    await world.traffic.stop()
    after = await world.gateway.get("chat")

    assert after["spec"] == before["spec"]
    assert not after["metadata"].get("annotations")


@pytest.mark.parametrize(
    ("route", "chosen", "why"),
    [
        ("other", "", "there is no HTTPRoute other in the namespace"),
        ("chat", "chat", "has no rule 'chat'"),
        ("chat", "", "different backends"),
    ],
)
async def test_obstacles_are_named(world: World, tmp_path: Path, route: str, chosen: str, why: str) -> None:
    user = str(world.here.cluster.kubeconfig(namespace=world.here.name))
    options = GatewayOptions(route=route, rule=chosen, kubeconfig=user)

    problems = await options.bind(Site(target="chat", state_dir=tmp_path, epoch=1)).problems()

    assert why in "; ".join(problems)


async def test_a_service_without_a_selector_is_named(world: World, tmp_path: Path) -> None:
    await world.here.api.patch(world.here.path("services", "vllm"), {"spec": {"selector": None}})
    user = str(world.here.cluster.kubeconfig(namespace=world.here.name))
    options = GatewayOptions(route="chat", rule="0", kubeconfig=user)

    problems = await options.bind(Site(target="chat", state_dir=tmp_path, epoch=1)).problems()

    assert "the Service vllm has no selector" in "; ".join(problems)


async def test_a_missing_right_is_named(world: World, tmp_path: Path) -> None:
    reads = [
        rule([GROUP], ["httproutes"], ["get", "list"]),
        rule(["coordination.k8s.io"], ["leases"], ["get"]),
    ]
    user = await world.here.user("reader", *reads, READS)
    bound = GatewayOptions(route="chat", rule="0", kubeconfig=str(user))

    with pytest.raises(ActError, match="give flettner's Role this right"):
        await bound.bind(Site(target="chat", state_dir=tmp_path, epoch=1)).problems()


async def _has(world: World, wanted: dict[str, int]) -> Json:
    backends = await world.gateway.backends("chat")
    return {"found": backends} if backends == wanted else {}
