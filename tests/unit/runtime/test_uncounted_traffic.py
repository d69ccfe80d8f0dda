"""Where the proxy counts no requests, the engine ends a drain, and suggestions say what is not seen."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flettner.agent.domain import events as e
from flettner.agent.domain.effects import Drain, KeepAlive, Preflight, Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.agent.domain.request_counts import RequestSource
from flettner.agent.runtime.effect_runner import UNSEEN, EffectRunner
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_no_time, loop_now
from tests.support.machine_stories import BLUE

DRAIN = Drain(number=1, server=BLUE, deadline_s=30.0)
OTHER = replace(BLUE, name="chat-r1", address="127.0.0.1:8001")
WITHOUT_BLUE = Route(
    number=1, servers=(BLUE, OTHER), weights={BLUE.name: 0, OTHER.name: 100}, fallback=OTHER.name
)


def runner(engine: FakeEngine, emit: Callable[[e.Event], None], home: Path, *, counts: bool) -> EffectRunner:
    traffic = FakeTraffic(counts_requests=counts)
    site = Site(target="chat", state_dir=home, epoch=1)
    return EffectRunner(engine=engine, traffic=traffic.bind(site), emit=emit, now=loop_now, epoch=1)


def took_s(scenario: Callable[[], Awaitable[None]]) -> float:
    async def timed() -> float:
        began = asyncio.get_running_loop().time()
        await scenario()
        return asyncio.get_running_loop().time() - began

    return in_no_time(timed())


def test_a_drain_ends_when_the_engine_is_idle(tmp_path: Path) -> None:
    engine, heard = FakeEngine(BLUE), list[e.Event]()
    engine.requests[BLUE.name] = 3
    performer = runner(engine, heard.append, tmp_path, counts=False)

    async def scenario() -> None:
        draining = asyncio.create_task(performer.perform(DRAIN))
        await asyncio.sleep(10)
        assert not draining.done()
        engine.requests[BLUE.name] = 0
        await draining

    assert took_s(scenario) < 12
    assert [event.open for event in heard if isinstance(event, e.Drained)] == [0]


def test_a_drain_of_an_engine_that_does_not_answer_ends_at_its_deadline(tmp_path: Path) -> None:
    heard = list[e.Event]()
    performer = runner(FakeEngine(), heard.append, tmp_path, counts=False)

    assert took_s(lambda: performer.perform(DRAIN)) == pytest.approx(30, abs=1)
    assert [type(event) for event in heard] == [e.Drained]


def test_a_drain_waits_until_no_part_of_the_proxy_works_by_the_route_before(tmp_path: Path) -> None:
    sent = list[e.Event]()
    traffic = FakeTraffic().bind(Site(target="chat", state_dir=tmp_path, epoch=1))
    traffic.settled = False
    performer = EffectRunner(
        engine=FakeEngine(BLUE), traffic=traffic, emit=sent.append, now=loop_now, epoch=1
    )

    async def scenario() -> None:
        await traffic.route(WITHOUT_BLUE)
        draining = asyncio.create_task(performer.perform(DRAIN))
        await asyncio.sleep(5)
        assert not draining.done()
        traffic.settled = True
        await draining

    assert took_s(scenario) < 7
    assert [event.open for event in sent if isinstance(event, e.Drained)] == [0]


def test_a_server_that_has_a_share_again_is_not_drained(tmp_path: Path) -> None:
    heard = list[e.Event]()
    traffic = FakeTraffic().bind(Site(target="chat", state_dir=tmp_path, epoch=1))
    performer = EffectRunner(
        engine=FakeEngine(BLUE), traffic=traffic, emit=heard.append, now=loop_now, epoch=1
    )

    async def scenario() -> None:
        await traffic.route(replace(WITHOUT_BLUE, weights={BLUE.name: 60, OTHER.name: 40}))
        await performer.perform(DRAIN)

    in_no_time(scenario())
    assert [event.why for event in heard if isinstance(event, e.EffectFailed) and event.external] == [
        "a third party gave chat-r0 60 % while it drained"
    ]


def test_a_renewal_that_hangs_ends_so_that_another_can_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_at_s = list[float]()

    async def hang(*_: object) -> None:
        begun_at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(3600)

    traffic, problems = FakeTraffic().bind(Site(target="chat", state_dir=tmp_path, epoch=1)), list[str]()
    monkeypatch.setattr(type(traffic), "keep_alive", hang)
    runner = EffectRunner(
        engine=FakeEngine(BLUE),
        traffic=traffic,
        emit=list[e.Event]().append,
        now=loop_now,
        epoch=1,
        on_kept=problems.append,
    )
    alone = Route(number=1, servers=(BLUE,), weights={BLUE.name: 100}, fallback=BLUE.name)

    async def scenario() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                while True:
                    runner.start(KeepAlive(route=alone), tasks)
                    await asyncio.sleep(1)

    in_no_time(scenario())
    assert [at_s - begun_at_s[0] for at_s in begun_at_s] == pytest.approx([0, 21], abs=2)
    assert problems == ["keep_alive timed out"]


def test_a_new_split_ends_a_renewal_that_holds_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a split is awaited no renewal is due that would end the one before."""
    turn, routed_at_s = asyncio.Lock(), list[float]()

    async def hang(*_: object) -> None:
        async with turn:
            await asyncio.sleep(3600)

    async def route(*_: object) -> None:
        async with turn:
            routed_at_s.append(asyncio.get_running_loop().time())

    traffic = FakeTraffic().bind(Site(target="chat", state_dir=tmp_path, epoch=1))
    monkeypatch.setattr(type(traffic), "keep_alive", hang)
    monkeypatch.setattr(type(traffic), "route", route)
    performer = EffectRunner(
        engine=FakeEngine(BLUE), traffic=traffic, emit=list[e.Event]().append, now=loop_now, epoch=1
    )

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            performer.start(KeepAlive(route=WITHOUT_BLUE), tasks)
            await asyncio.sleep(1)
            performer.start(WITHOUT_BLUE, tasks)  # which fails after 20 s
            await asyncio.sleep(24)
            performer.start(WITHOUT_BLUE, tasks)

    assert took_s(scenario) < 30
    assert len(routed_at_s) == 1


def test_a_split_that_cannot_be_kept_is_logged_when_that_begins_and_when_it_ends(tmp_path: Path) -> None:
    heard, problems = list[e.Event](), list[str]()
    traffic = FakeTraffic().bind(Site(target="chat", state_dir=tmp_path, epoch=1))
    performer = EffectRunner(
        engine=FakeEngine(BLUE),
        traffic=traffic,
        emit=heard.append,
        now=loop_now,
        epoch=1,
        on_kept=problems.append,
    )
    alone = Route(number=1, servers=(BLUE,), weights={BLUE.name: 100}, fallback=BLUE.name)

    with capture_logs() as logs:
        for why in ("", "drift: it was edited", "drift: it was edited again", "", ""):
            traffic.next_error = ActError(why) if why else None
            in_no_time(performer.perform(KeepAlive(route=alone)))

    assert problems == ["", "drift: it was edited", "drift: it was edited again", "", ""]
    assert [(entry["event"], entry.get("why", "")) for entry in logs] == [
        ("traffic.split_not_kept", "drift: it was edited"),
        ("traffic.split_kept_again", ""),
    ]


@pytest.mark.parametrize("counted_by", ["proxy", "access_log", "engine"])
def test_a_suggestion_says_what_is_not_seen(tmp_path: Path, counted_by: RequestSource) -> None:
    heard = list[e.Event]()
    performer = replace(runner(FakeEngine(BLUE), heard.append, tmp_path, counts=False), counted_by=counted_by)

    in_no_time(performer.perform(Preflight(number=1, servers=(BLUE,), setting={}, wanted="auto")))

    [event] = heard
    assert isinstance(event, e.Preflighted)
    assert [note for note in event.preflight.notes if note in UNSEEN.values()] == [
        UNSEEN[counted_by] for _ in range(1) if counted_by in UNSEEN
    ]
