from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.envoy.share_table import ShareRange, first_tries, second_tries
from flettner.actuators.shared.split import check, without_lease
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Server


def route_of(weights: dict[str, int], *, leased: str | None = None, fallback: str = "a") -> Route:
    servers = tuple(Server(name=name, setting={}, address="127.0.0.1:9") for name in weights)
    return Route(
        number=1,
        servers=servers,
        weights=weights,
        fallback=fallback,
        leased=leased,
        lease_s=3.0 if leased else 0,
    )


@st.composite
def splits(draw: st.DrawFn, *, may_lease: bool = True) -> Route:
    """Return a random valid route of up to six servers."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    cuts = sorted(draw(st.lists(st.integers(0, 100), min_size=len(names) - 1, max_size=len(names) - 1)))
    weights = [end - start for start, end in zip([0, *cuts], [*cuts, 100], strict=True)]
    fallback = draw(st.sampled_from(names))
    others = [name for name in names if name != fallback]
    leased = draw(st.sampled_from([None, *others])) if may_lease else None
    route = route_of(dict(zip(names, weights, strict=True)), leased=leased, fallback=fallback)
    check(route)
    return route


def places(parts: tuple[ShareRange, ...]) -> list[str]:
    """Return the owner of each of the hundred slots."""
    assert all(part > 0 for _, part in parts)  # Envoy rejects a weight of 0
    return [name for name, part in parts for _ in range(part)]


@given(route=splits())
def test_every_server_has_its_weight(route: Route) -> None:
    servers = places(first_tries(route))

    assert len(servers) == 100
    assert {name: servers.count(name) for name in route.weights} == route.weights


@given(route=splits())
def test_an_expired_lease_moves_only_the_leased_share(route: Route) -> None:
    before, after = places(first_tries(route)), places(first_tries(without_lease(route)))

    assert route.leased not in after or not route.leased
    assert all(was in (now, route.leased) for was, now in zip(before, after, strict=True))


@given(route=splits())
def test_remaining_servers_share_an_expired_lease_by_weight(route: Route) -> None:
    after = without_lease(route).weights
    staying = {name: weight for name, weight in route.weights.items() if weight and name != route.leased}

    assert sum(after.values()) == 100
    if not staying:
        assert after[route.fallback] == 100
    for name, weight in staying.items():
        assert abs(after[name] - 100 * weight / sum(staying.values())) < 1


@given(route=splits())
def test_a_retry_goes_to_another_remaining_server(route: Route) -> None:
    first, second = places(first_tries(route)), places(second_tries(route))
    staying = {name for name, weight in without_lease(route).weights.items() if weight}

    for failed, next_one in zip(first, second, strict=True):
        assert next_one != route.leased or not route.leased
        if staying - {failed}:
            assert next_one in staying - {failed}
        else:
            assert next_one == route.fallback


@given(route=splits(), more=st.integers(0, 100))
def test_a_growing_lease_only_adds_sessions(route: Route, more: int) -> None:
    whole = without_lease(route)
    others = [name for name in whole.weights if whole.weights[name] and name != route.leased]
    if not route.leased or len(others) != 1:
        return
    share = max(more, route.weights[route.leased])
    grown = replace(route, weights={**whole.weights, others[0]: 100 - share, route.leased: share})

    before, after = places(first_tries(route)), places(first_tries(grown))

    assert all(now == route.leased for was, now in zip(before, after, strict=True) if was == route.leased)


def test_equal_servers_take_over_from_each_other_alike() -> None:
    names = [f"s{number:02}" for number in range(20)]
    route = route_of(dict.fromkeys(names, 5), fallback="s00")

    second = places(second_tries(route))

    assert {name: second.count(name) for name in names} == dict.fromkeys(names, 5)


def test_the_share_of_a_canary_among_three_returns_evenly() -> None:
    route = route_of({"a": 40, "b": 35, "c": 5, "g": 20}, leased="g")

    assert without_lease(route).weights == {"a": 50, "b": 44, "c": 6, "g": 0}


def test_without_other_weighted_servers_the_fallback_has_all_traffic() -> None:
    route = route_of({"a": 0, "b": 0, "g": 100}, leased="g")

    assert first_tries(route) == (("g", 100),)
    assert second_tries(route) == first_tries(without_lease(route)) == (("a", 100),)
