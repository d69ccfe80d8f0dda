"""An HTTPRoute that a third party changed is read every few seconds, not every second, and left alone."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flettner.actuators.gateway.plugin import GatewayOptions
from flettner.actuators.gateway.traffic import LOOK_S, GatewayTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes.documents import Json
from tests.support.fast_time import in_no_time
from tests.support.gateway.memory import NAMESPACE, MemoryRoutes, away, installed
from tests.unit.gateway.test_record import HOME, KEY, RECORD, SPLIT

SECONDS = 60
EDITED = [{**backend, "weight": 50} for backend in SPLIT]
SERVERS = tuple(
    Server(name=name, setting={}, address=address.replace(".ns.", f".{NAMESPACE}."))
    for name, address in RECORD.addresses.items()
)
CANARY = Route(
    number=8,
    servers=SERVERS,
    weights=dict(RECORD.weights),
    fallback="vllm",
    leased="chat-r1",
    lease_s=15.0,
)
ALONE = replace(CANARY, weights={"vllm": 100, "chat-r1": 0}, leased=None)


@pytest.fixture
def routes() -> Iterator[MemoryRoutes]:
    with installed(MemoryRoutes()) as memory:
        write(memory, EDITED)
        yield memory


def write(routes: MemoryRoutes, backends: list[Json]) -> None:
    accepted = [
        {"type": kind, "status": "True", "observedGeneration": 99} for kind in ("Accepted", "ResolvedRefs")
    ]
    routes.put("chat", {"backendRefs": backends}, annotations={KEY: RECORD.text()})
    document = {**routes.route("chat"), "status": {"parents": [{"conditions": accepted}]}}
    routes.server.store.put(("httproutes", NAMESPACE, "chat"), document)


def bound(tmp_path: Path, routes: MemoryRoutes) -> GatewayTraffic:
    options = GatewayOptions(
        route="chat", kubeconfig=routes.client().kubeconfig, namespace=NAMESPACE, settle_s=0.0
    )
    return options.bind(Site(target="chat", state_dir=tmp_path, epoch=RECORD.epoch + 1))


async def keep(traffic: GatewayTraffic, route: Route, seconds: int) -> list[str]:
    """As the machine asks, once a second; return the errors."""
    errors = []
    for _ in range(seconds):
        try:
            await traffic.keep_alive(route)
        except ActError as error:
            errors.append(error.why)
        await asyncio.sleep(1.0)
    return errors


@pytest.mark.parametrize("route", [CANARY, ALONE], ids=["canary", "at rest"])
def test_a_drifted_route_is_told_each_second_and_read_every_five(
    tmp_path: Path, routes: MemoryRoutes, route: Route
) -> None:
    errors = in_no_time(keep(bound(tmp_path, routes), route, SECONDS))

    reads = [call for call in routes.calls if call.path.endswith("/httproutes/chat")]
    assert len(errors) == SECONDS
    assert all("it writes nothing until they are back" in why for why in errors)
    assert len(reads) <= SECONDS / LOOK_S + 1
    assert routes.writes() == []


def test_a_route_that_is_as_it_was_is_kept_again(tmp_path: Path, routes: MemoryRoutes) -> None:
    async def story() -> list[str]:
        traffic = bound(tmp_path, routes)
        await keep(traffic, CANARY, 10)
        write(routes, SPLIT)
        await asyncio.sleep(LOOK_S)
        return await keep(traffic, CANARY, 10)

    assert in_no_time(story()) == []
    assert routes.writes() != []


def test_another_route_is_tried_at_once(tmp_path: Path, routes: MemoryRoutes) -> None:
    async def story() -> list[str]:
        traffic = bound(tmp_path, routes)
        await keep(traffic, CANARY, 1)
        write(routes, HOME)
        return await keep(traffic, replace(ALONE, number=9), 1)

    reports = in_no_time(story())

    assert len(reports) == 1
    assert "vllm:80" in reports[0]


def test_an_api_server_that_is_away_is_asked_again_each_second(tmp_path: Path, routes: MemoryRoutes) -> None:
    async def story() -> list[str]:
        traffic = bound(tmp_path, routes)
        write(routes, SPLIT)
        routes.faults.append(away)
        errors = await keep(traffic, CANARY, 10)
        routes.faults.clear()
        assert await keep(traffic, CANARY, 1) == []
        return errors

    errors = in_no_time(story())

    assert len(errors) == 10
    assert len([call for call in routes.calls if call.path.endswith("/httproutes/chat")]) >= 11
