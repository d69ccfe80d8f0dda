"""The backends of a split keep to what the Gateway API accepts, and to what people wrote."""

import pytest

from flettner.actuators.gateway.backends import MOST, complete, find_obstacles, service_of, split_backends
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.clients.kubernetes.documents import Json

FILTERS = [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}}]
HOME: Json = {"group": "", "name": "vllm", "port": 80, "filters": FILTERS}


def servers(count: int) -> tuple[Server, ...]:
    return tuple(
        Server(name=f"s{at}", setting={}, address=f"flettner-s{at}.ns.svc:8000") for at in range(count)
    )


def route(count: int, **weights: int) -> Route:
    return Route(number=1, servers=servers(count), weights=weights, fallback="s0")


def test_a_split_has_a_backend_for_each_server_with_a_weight() -> None:
    made = split_backends(route(3, s0=95, s1=5, s2=0), {"s0": 95, "s1": 5, "s2": 0}, HOME, "ns")

    assert made == [
        {"kind": "Service", "name": "flettner-s0", "port": 8000, "weight": 95, "filters": FILTERS},
        {"kind": "Service", "name": "flettner-s1", "port": 8000, "weight": 5, "filters": FILTERS},
    ]


def test_a_closed_split_has_all_servers_with_weight_zero() -> None:
    closed = Route(number=1, servers=servers(2), weights={"s0": 0, "s1": 0}, fallback="", closed_s=20.0)

    made = split_backends(closed, closed.weights, HOME, "ns")

    assert [backend["weight"] for backend in made] == [0, 0]


def test_more_servers_than_a_rule_may_have_are_refused() -> None:
    weights = {f"s{at}": 1 for at in range(MOST + 1)}

    with pytest.raises(ActError, match="at most 16"):
        split_backends(route(MOST + 1, **weights), weights, HOME, "ns")


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "chat.other.svc:8000", "", "chat.ns.svc"])
def test_only_a_service_of_the_namespace_is_a_backend(address: str) -> None:
    with pytest.raises(ActError, match="Services of the namespace ns"):
        service_of(address, "ns")


def test_defaults_make_no_difference() -> None:
    assert complete([{"name": "vllm", "port": 80}]) == complete(
        [{"group": "", "kind": "Service", "name": "vllm", "port": 80, "weight": 1}]
    )


@pytest.mark.parametrize(
    ("backends", "why"),
    [
        ([], "no backendRefs"),
        ([{"name": "vllm", "port": 80}, {"name": "old", "port": 80}], "several backends"),
        (
            [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "pool"}],
            "not a Service",
        ),
        ([{"name": "vllm", "port": 80, "namespace": "other"}], "in another namespace"),
        ([{"name": "vllm", "port": 80, "weight": 0}], "weight of vllm is 0"),
    ],
)
def test_backends_that_cannot_be_split_are_named(backends: list[Json], why: str) -> None:
    [obstacle] = find_obstacles(backends, "ns")

    assert why in obstacle


def test_one_service_has_no_obstacle() -> None:
    assert find_obstacles([HOME], "ns") == []
