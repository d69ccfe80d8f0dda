"""The effects that change knobs of running servers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from structlog.testing import capture_logs

from flettner.agent.domain import events as e
from flettner.agent.domain.effects import KeepKnobs, SetKnobs
from flettner.agent.domain.ports import Site
from flettner.agent.runtime.effect_runner import EffectRunner
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_no_time, loop_now
from tests.support.machine_stories import BLUE

OTHER = replace(BLUE, name="chat-r9")
CHANGE = SetKnobs(number=4, epoch=2, servers=(BLUE, OTHER), values={"max_num_active_seqs": 2}, lease_s=5.0)


def play(
    tmp_path: Path, scenario: Callable[[FakeEngine, EffectRunner], Awaitable[None]]
) -> list[type[e.Event]]:
    heard = list[e.Event]()

    async def timed() -> None:
        engine = FakeEngine(BLUE, OTHER)
        engine.make_hot(BLUE.name)
        engine.make_hot(OTHER.name)
        traffic = FakeTraffic().bind(Site(target="chat", state_dir=tmp_path, epoch=2))

        async def observed() -> e.Event:
            return e.AgentStarted(
                at=loop_now(), epoch=2, mode="approve", servers=tuple(await engine.observe())
            )

        await scenario(
            engine,
            EffectRunner(
                engine=engine, traffic=traffic, emit=heard.append, now=loop_now, epoch=2, observe=observed
            ),
        )

    in_no_time(timed())
    return [type(event) for event in heard]


def caps(engine: FakeEngine) -> list[object]:
    shown = [engine.hot.knobs[name].show()["in_force"] for name in (BLUE.name, OTHER.name)]
    return [values["max_num_seqs"] for values in shown if isinstance(values, dict)]


def test_values_come_into_force_on_every_server(tmp_path: Path) -> None:
    async def scenario(engine: FakeEngine, runner: EffectRunner) -> None:
        await runner.perform(CHANGE)
        assert caps(engine) == [2, 2]

    assert play(tmp_path, scenario) == [e.KnobsSet]


def test_a_renewal_gives_a_server_that_started_again_its_values_and_is_no_event(tmp_path: Path) -> None:
    async def scenario(engine: FakeEngine, runner: EffectRunner) -> None:
        await runner.perform(CHANGE)
        engine.make_hot(BLUE.name)
        await runner.perform(KeepKnobs(change=CHANGE))
        assert caps(engine) == [2, 2]

    assert play(tmp_path, scenario) == [e.KnobsSet]


def test_a_server_that_does_not_answer_fails_the_change(tmp_path: Path) -> None:
    async def scenario(engine: FakeEngine, runner: EffectRunner) -> None:
        engine.hang(OTHER.name)
        await runner.perform(CHANGE)

    assert play(tmp_path, scenario) == [e.EffectFailed]


def test_a_failed_renewal_is_logged_once(tmp_path: Path) -> None:
    async def scenario(engine: FakeEngine, runner: EffectRunner) -> None:
        await runner.perform(CHANGE)
        engine.hang(OTHER.name)
        await runner.perform(KeepKnobs(change=CHANGE))
        await runner.perform(KeepKnobs(change=CHANGE))
        engine.wake(OTHER.name)
        await runner.perform(KeepKnobs(change=CHANGE))

    with capture_logs() as logs:
        assert play(tmp_path, scenario) == [e.KnobsSet]
    assert [line["event"] for line in logs] == ["knobs.not_kept", "knobs.kept_again"]


def test_a_lease_that_could_not_be_renewed_until_its_end_fails_the_change(tmp_path: Path) -> None:
    async def scenario(engine: FakeEngine, runner: EffectRunner) -> None:
        await runner.perform(CHANGE)
        engine.hang(OTHER.name)
        for _ in range(6):
            await runner.perform(KeepKnobs(change=CHANGE))
            await asyncio.sleep(1)

    assert play(tmp_path, scenario) == [e.KnobsSet, e.EffectFailed]


def test_values_without_a_lease_do_not_fail_while_a_server_does_not_answer(tmp_path: Path) -> None:
    async def scenario(engine: FakeEngine, runner: EffectRunner) -> None:
        await runner.perform(replace(CHANGE, lease_s=None))
        engine.hang(OTHER.name)
        await asyncio.sleep(60)
        await runner.perform(KeepKnobs(change=replace(CHANGE, lease_s=None)))

    assert play(tmp_path, scenario) == [e.KnobsSet]


def test_the_servers_are_observed_again_once_a_third_party_has_set_values(tmp_path: Path) -> None:
    async def scenario(engine: FakeEngine, runner: EffectRunner) -> None:
        await engine.set_knobs(BLUE, {"max_num_active_seqs": 3}, (2, 9))
        await runner.perform(KeepKnobs(change=CHANGE))
        await runner.perform(CHANGE)

    assert play(tmp_path, scenario) == [e.AgentStarted, e.EffectFailed, e.AgentStarted]
