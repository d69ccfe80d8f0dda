"""Answers of blue and green are compared, and the operator's command decides; answers stay in memory."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.effects import Examine, Retire, WarmUp
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import Event, Retired, Warmed
from flettner.agent.domain.model import Server
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.quality.answer_check import Examiner, run_command
from flettner.agent.quality.golden_prompts import PROMPTS, GoldenPromptOptions
from flettner.agent.runtime.effect_runner import EffectRunner
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import loop_now

BLUE = Server(name="chat-r0", setting={}, address="127.0.0.1:8000")
GREEN = Server(name="chat-r1", setting={}, address="127.0.0.1:8101")
BOTH = Examine(number=1, blue=BLUE, green=GREEN, deadline_s=60)


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


async def test_blue_is_queried_before_and_after_green() -> None:
    engine = FakeEngine(BLUE, GREEN)

    comparison = await Examiner(engine=engine, exam=GoldenPromptOptions()).examine(BOTH)

    assert comparison.ok
    assert (comparison.prompts, comparison.same) == (len(PROMPTS), 1.0)
    assert [name for _, name in engine.calls] == ["chat-r0", "chat-r1", "chat-r0"]


async def test_wrong_answers_are_detected() -> None:
    engine = FakeEngine(BLUE, GREEN)
    engine.wrong_answers["chat-r1"] = "what else"

    comparison = await Examiner(
        engine=engine, exam=GoldenPromptOptions(command=python("print('fine')"))
    ).examine(BOTH)

    assert not comparison.ok
    assert "of 40 golden prompts" in comparison.why


async def test_the_answers_of_a_blue_that_stops_are_kept() -> None:
    engine = FakeEngine(BLUE, GREEN)
    examiner = Examiner(engine=engine, exam=GoldenPromptOptions())

    first = await examiner.examine(replace(BOTH, green=None))
    engine.die("chat-r0")
    comparison = await examiner.examine(BOTH)

    assert (first.ok, comparison.ok, comparison.same) == (True, True, 1.0)


async def test_after_a_restart_the_lost_answers_of_a_stopped_blue_give_no_verdict() -> None:
    engine = FakeEngine(BLUE, GREEN)
    await Examiner(engine=engine, exam=GoldenPromptOptions()).examine(replace(BOTH, green=None))
    engine.die("chat-r0")

    with pytest.raises(ActError):
        await Examiner(engine=engine, exam=GoldenPromptOptions()).examine(BOTH)


class Failing(FakeEngine):
    """Blue refuses every prompt."""

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        answers = await super().answers(server, prompts, deadline_s)
        return answers if server == GREEN else tuple(GoldenAnswer(finish_reason="failed") for _ in answers)


async def test_a_failing_blue_is_no_reference() -> None:
    with pytest.raises(ActError, match="chat-r0 failed 40 of 40 golden prompts"):
        await Examiner(engine=Failing(BLUE, GREEN), exam=GoldenPromptOptions()).examine(BOTH)


async def test_the_operators_command_gets_both_urls_and_its_last_lines_are_reported() -> None:
    command = (
        *python("import sys; print('loading'); print('\\n'.join(sys.argv[1:]))"),
        "{green}/v1",
        "{blue}",
    )

    comparison = await Examiner(
        engine=FakeEngine(BLUE, GREEN), exam=GoldenPromptOptions(command=command)
    ).examine(BOTH)

    assert comparison.ok
    assert comparison.why.endswith("http://127.0.0.1:8101/v1 http://127.0.0.1:8000")


async def test_the_operators_command_may_fail_green() -> None:
    command = python("import sys; print('gsm8k 0.31, was 0.62'); sys.exit(3)")

    comparison = await Examiner(
        engine=FakeEngine(BLUE, GREEN), exam=GoldenPromptOptions(command=command)
    ).examine(BOTH)

    assert not comparison.ok
    assert comparison.why == f"{sys.executable} ended with status 3: gsm8k 0.31, was 0.62"


async def test_a_command_that_hangs_ends_with_the_examination() -> None:
    exam = GoldenPromptOptions(command=python("import time; time.sleep(3600)"))

    with pytest.raises(TimeoutError):
        await Examiner(engine=FakeEngine(BLUE, GREEN), exam=exam).examine(replace(BOTH, deadline_s=0.5))


async def test_a_missing_command_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        await run_command(["/nowhere/lm_eval"])


async def test_the_end_of_a_long_command_output_is_kept() -> None:
    status, last = await run_command(python("print('x' * 10**6); [print(n) for n in range(10**5)]"))

    assert (status, last) == (0, "99998 99999")


async def test_a_retired_green_is_not_queried() -> None:
    engine, heard = FakeEngine(BLUE, GREEN, takes_s=3600), list[Event]()
    performer = EffectRunner(engine=engine, traffic=FakeTraffic(), emit=heard.append, now=loop_now, epoch=1)
    async with asyncio.TaskGroup() as tasks:
        performer.start(BOTH, tasks)
        await asyncio.sleep(0)
        engine.takes_s = 0
        performer.start(Retire(number=2, server=GREEN), tasks)

    assert [event.number for event in heard if isinstance(event, Retired)] == [2]
    assert len(heard) == 1


async def test_the_operators_prompts_and_prefixes_warm_up_a_new_server() -> None:
    engine, heard = FakeEngine(GREEN), list[Event]()
    prefix = SharedPrefix(text="You are kind.", chat=True)
    own = GoldenPromptOptions(prompts=("as our clients ask",), own=True, prefixes=(prefix,))
    performer = EffectRunner(
        engine=engine, traffic=FakeTraffic(), emit=heard.append, now=loop_now, epoch=1, exam=own
    )

    await performer.perform(WarmUp(number=1, server=GREEN, requests=4, deadline_s=60))

    assert (engine.warmed_with, engine.prefixes) == (own.prompts, (prefix,))
    assert [type(event) for event in heard] == [Warmed]
