"""The guard ends the lease of a dead daemon, in time and by its own clock, and ends nothing else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import httpx2
import pytest
from structlog.testing import capture_logs

from flettner.actuators.gateway.guard import LOOK_S, Guard
from flettner.actuators.gateway.guard_sign import BEAT_S, GONE_S, LEASE_NAME, GuardSign, sign_of
from flettner.actuators.gateway.record import annotation, record_of
from flettner.agent.domain.ports import Now
from flettner.clients.kubernetes.documents import Json
from tests.support.fast_time import in_no_time, loop_now
from tests.support.gateway.memory import NAMESPACE, MemoryRoutes, away, forbids, installed
from tests.support.kubernetes.memory.server import Request
from tests.unit.gateway.test_record import HOME, KEY, RECORD, SPLIT

SPLIT_WEIGHTS, HOME_WEIGHTS = {"flettner-vllm": 95, "flettner-r1": 5}, {"vllm": 1}
LEASE_S = RECORD.lease_s


@pytest.fixture
def routes() -> Iterator[MemoryRoutes]:
    with installed(MemoryRoutes()) as memory:
        write(memory, renewal=1)
        yield memory


def write(routes: MemoryRoutes, *, renewal: int, name: str = "chat", backends: list[Json] = SPLIT) -> None:
    """As the daemon renews the lease."""
    text = replace(RECORD, renewal=renewal).text()
    routes.put(name, {"backendRefs": backends}, annotations={KEY: text})


@asynccontextmanager
async def guarding(routes: MemoryRoutes, *, now: Now = loop_now, count: int = 1) -> AsyncIterator[None]:
    stop = asyncio.Event()
    guards = [asyncio.create_task(Guard(client=routes.client(), now=now).run(stop)) for _ in range(count)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*guards)


def play(routes: MemoryRoutes, story: Callable[[], Awaitable[None]], *, count: int = 1) -> None:
    async def played() -> None:
        async with guarding(routes, count=count):
            await story()

    in_no_time(played())


def test_a_lease_ends_when_it_was_not_renewed_for_as_long_as_it_lasts(routes: MemoryRoutes) -> None:
    async def story() -> None:
        await asyncio.sleep(LEASE_S - 0.5)
        assert routes.backends("chat") == SPLIT_WEIGHTS
        await asyncio.sleep(0.5 + 2 * LOOK_S)

    play(routes, story)

    record = record_of(routes.route("chat"), KEY)
    assert record is not None
    assert record.ended
    assert routes.backends("chat") == HOME_WEIGHTS
    assert len(routes.writes()) == 1


def test_a_lease_that_is_renewed_does_not_end(routes: MemoryRoutes) -> None:
    async def story() -> None:
        for renewal in range(2, 30):
            await asyncio.sleep(LEASE_S - 2 * LOOK_S)
            write(routes, renewal=renewal)

    play(routes, story)

    assert routes.backends("chat") == SPLIT_WEIGHTS
    assert routes.writes() == []


def test_a_guard_that_starts_gives_a_lease_its_full_time(routes: MemoryRoutes) -> None:
    async def story() -> None:
        await asyncio.sleep(3600)  # before any guard
        async with guarding(routes):
            await asyncio.sleep(LEASE_S - 0.5)
            assert routes.backends("chat") == SPLIT_WEIGHTS

    in_no_time(story())


@pytest.mark.parametrize("hours", [-26, 26])
def test_a_wall_clock_that_jumps_ends_nothing_early_and_nothing_late(
    routes: MemoryRoutes, hours: int
) -> None:
    def skewed() -> datetime:
        jumped = asyncio.get_running_loop().time() > 5
        return loop_now() + (timedelta(hours=hours) if jumped else timedelta())

    async def story() -> None:
        async with guarding(routes, now=skewed):
            await asyncio.sleep(LEASE_S - 0.5)
            assert routes.backends("chat") == SPLIT_WEIGHTS
            await asyncio.sleep(0.5 + 2 * LOOK_S)
            assert routes.backends("chat") == HOME_WEIGHTS

    in_no_time(story())


def test_two_guards_end_a_lease_once(routes: MemoryRoutes) -> None:
    play(routes, lambda: asyncio.sleep(LEASE_S + 5 * LOOK_S), count=2)

    versions = [change for change in routes.server.store.history if change.key[0] == "httproutes"]
    assert routes.backends("chat") == HOME_WEIGHTS
    assert len(versions) == 2  # the split, and its end


def test_a_list_of_the_past_ends_no_lease_that_was_renewed_since(routes: MemoryRoutes) -> None:
    old = routes.route("chat")

    async def stale(request: Request) -> httpx2.Response | None:
        if request.method == "GET" and request.path.endswith("/httproutes"):
            return httpx2.Response(200, json={"kind": "HTTPRouteList", "metadata": {}, "items": [old]})
        return None

    async def story() -> None:
        await asyncio.sleep(LOOK_S)
        write(routes, renewal=2)
        routes.faults.append(stale)
        await asyncio.sleep(LEASE_S + 5 * LOOK_S)

    play(routes, story)

    assert routes.backends("chat") == SPLIT_WEIGHTS
    assert routes.writes() == []


def test_a_renewal_between_the_guards_read_and_its_write_wins(routes: MemoryRoutes) -> None:
    async def renew(request: Request) -> httpx2.Response | None:
        if request.method == "PATCH" and "httproutes" in request.path:
            routes.faults.remove(renew)
            write(routes, renewal=2)  # the guard's write is refused with 409
        return None

    async def story() -> None:
        routes.faults.append(renew)
        await asyncio.sleep(LEASE_S + 3 * LOOK_S)
        assert routes.backends("chat") == SPLIT_WEIGHTS
        await asyncio.sleep(LEASE_S)

    play(routes, story)

    assert len(routes.writes()) == 2  # the refused one, and the end of the renewed lease
    assert routes.backends("chat") == HOME_WEIGHTS


def test_backends_that_a_person_edited_are_left(routes: MemoryRoutes) -> None:
    async def story() -> None:
        await asyncio.sleep(LOOK_S)
        edited = [{**backend, "weight": 50} for backend in SPLIT]
        write(routes, renewal=1, backends=edited)
        await asyncio.sleep(3 * LEASE_S)

    play(routes, story)

    assert set(routes.backends("chat").values()) == {50}
    assert routes.writes() == []


def test_a_rule_that_vanished_keeps_no_other_lease_from_its_end(routes: MemoryRoutes) -> None:
    async def story() -> None:
        await asyncio.sleep(LOOK_S)
        routes.put("chat", annotations={KEY: RECORD.text()})  # no rule is left
        write(routes, renewal=1, name="other")
        await asyncio.sleep(LEASE_S + 3 * LOOK_S)

    play(routes, story)

    assert routes.route("chat")["spec"]["rules"] == []
    assert routes.backends("other") == HOME_WEIGHTS


def test_only_the_rules_that_have_the_split_are_put_back(routes: MemoryRoutes) -> None:
    docs: list[Json] = [{"kind": "Service", "name": "docs", "port": 80, "weight": 3}]
    rules = ({"backendRefs": docs}, {"backendRefs": SPLIT}, {"filters": [{"type": "RequestMirror"}]})
    routes.put("chat", *rules, annotations={KEY: RECORD.text(), "people": "own"})

    play(routes, lambda: asyncio.sleep(LEASE_S + 3 * LOOK_S))

    route = routes.route("chat")
    assert route["spec"]["rules"] == [rules[0], {"backendRefs": HOME}, rules[2]]
    assert route["metadata"]["annotations"]["people"] == "own"


def test_an_annotation_that_a_person_broke_keeps_no_other_lease_from_its_end(routes: MemoryRoutes) -> None:
    routes.put("broken", {"backendRefs": SPLIT}, annotations={annotation("broken"): "{"})

    play(routes, lambda: asyncio.sleep(LEASE_S + 3 * LOOK_S))

    assert routes.backends("broken") == SPLIT_WEIGHTS
    assert routes.backends("chat") == HOME_WEIGHTS


def test_a_guard_without_the_right_to_write_says_so_once_and_gives_no_sign(routes: MemoryRoutes) -> None:
    signs = list[bool]()

    async def story() -> None:
        sign = GuardSign(client=routes.client())
        assert await sign.wait(10)
        routes.faults.append(forbids("PATCH", "httproutes"))
        await asyncio.sleep(LEASE_S + 2 * GONE_S)
        signs.append(await sign.look())
        await asyncio.sleep(GONE_S)
        signs.append(await sign.look())
        routes.faults.clear()
        await asyncio.sleep(5 * LOOK_S)
        signs.append(await sign.wait(10))

    with capture_logs() as logs:
        play(routes, story)

    assert signs[1:] == [False, True]
    assert [entry["event"] for entry in logs].count("guard.lease_not_ended") == 1
    assert routes.backends("chat") == HOME_WEIGHTS


def test_a_guard_that_may_not_read_says_so_once_and_goes_on(routes: MemoryRoutes) -> None:
    async def story() -> None:
        routes.faults.append(forbids("GET", "httproutes"))
        await asyncio.sleep(60)
        routes.faults.clear()
        await asyncio.sleep(LEASE_S + 3 * LOOK_S)

    with capture_logs() as logs:
        play(routes, story)

    assert [entry["event"] for entry in logs].count("guard.routes_unreadable") == 1
    assert routes.backends("chat") == HOME_WEIGHTS


def test_an_api_server_that_was_away_for_two_minutes_does_not_save_the_lease_of_a_dead_daemon(
    routes: MemoryRoutes,
) -> None:
    async def story() -> None:
        await asyncio.sleep(3 * LOOK_S)
        routes.faults.append(away)
        await asyncio.sleep(120)
        assert routes.backends("chat") == SPLIT_WEIGHTS
        routes.faults.clear()
        await asyncio.sleep(3 * LOOK_S)
        assert routes.backends("chat") == HOME_WEIGHTS

    play(routes, story)


def test_a_lease_renewed_while_only_the_guard_was_cut_off_gets_its_full_time_again(
    routes: MemoryRoutes,
) -> None:
    async def story() -> None:
        await asyncio.sleep(3 * LOOK_S)
        routes.faults.append(away)
        await asyncio.sleep(120)
        write(routes, renewal=2)
        routes.faults.clear()
        await asyncio.sleep(LEASE_S - 1)
        assert routes.backends("chat") == SPLIT_WEIGHTS
        await asyncio.sleep(1 + 3 * LOOK_S)
        assert routes.backends("chat") == HOME_WEIGHTS

    play(routes, story)


def test_the_sign_lapses_with_the_guard_and_a_removed_lease_is_created_again(routes: MemoryRoutes) -> None:
    signs = list[bool]()

    async def story() -> None:
        sign = GuardSign(client=routes.client())
        signs.append(await sign.wait(10))
        async with guarding(routes):
            signs.append(await sign.wait(10))
            routes.server.store.remove(("leases", NAMESPACE, LEASE_NAME))
            await asyncio.sleep(6)
            signs.append(await sign.look())
        await asyncio.sleep(GONE_S + 1)
        signs.append(await sign.look())

    in_no_time(story())

    assert signs == [False, True, True, False]


def test_all_targets_of_a_daemon_wait_for_one_sign(routes: MemoryRoutes) -> None:
    waited_s = list[float]()

    async def story() -> None:
        await asyncio.sleep(1.0)  # the guard's first sign is known
        began_s = asyncio.get_running_loop().time()
        for _ in range(20):
            assert await sign_of(routes.client()).wait(3 * BEAT_S)
        waited_s.append(asyncio.get_running_loop().time() - began_s)

    play(routes, story)

    assert BEAT_S / 2 < waited_s[0] <= BEAT_S
