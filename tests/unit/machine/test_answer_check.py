"""Answers of green are compared with those of blue before green gets traffic."""

from dataclasses import dataclass, replace

import pytest

from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.model import Bound, Proposal, Strategy
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import Phase
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.step import Machine
from flettner.agent.quality.golden_prompts import GoldenPromptOptions
from tests.support.machine_stories import World, rules


@dataclass(frozen=True, slots=True)
class QuantiseCache:
    """Proposes an FP8 KV cache, which may change answers."""

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        to = {"kv_cache_dtype": "fp8"}
        if context.setting.items() >= to.items() or not reading.waiting.low:
            return ()
        return (Proposal(rule="K1", to=to, why="12 wait", expects="less", risks="answers", source="test"),)


ALTERING = Machine(
    rules(
        policies=(("kv", QuantiseCache()),),
        guard=Guard(bounds={"kv_cache_dtype": Bound(allowed=("fp8",))}, cooldown_s=60),
    )
)


def examinations(world: World) -> list[fx.Examine]:
    return [effect for effect in world.performed if isinstance(effect, fx.Examine)]


def proposed(**more: object) -> World:
    return World(machine=ALTERING, **more).start().until("proposed")  # type: ignore[arg-type]


def test_a_change_that_alters_no_answers_is_not_examined() -> None:
    world = World().start().until("proposed").approve().until("canary")

    assert examinations(world) == []


def test_a_change_that_may_alter_answers_needs_an_approval_that_states_this() -> None:
    world = proposed(mode="auto").tick(5)

    suggestion = world.state.suggestions.open[0]
    assert (suggestion.proposal.klass, world.state.phase) == ("gated", Phase.PROPOSED)
    assert any("kv_cache_dtype may alter the answers" in note for note in suggestion.notes)


def test_a_warm_green_is_examined_and_gets_traffic_if_its_answers_match_blue() -> None:
    world = proposed().approve().until("canary")

    [examine] = examinations(world)
    green = world.state.canary.green
    assert examine.green == green
    assert examine.blue.name == "chat-r0"
    assert world.state.note == "green is warm; as golden as ever"
    assert world.state.rollout is not None
    assert world.state.canary.quality is not None
    assert world.state.canary.quality.ok


def test_a_green_with_wrong_answers_never_gets_traffic() -> None:
    world = proposed(wrong=True).approve().until("cooldown")

    rollout = world.state.rollout
    assert rollout is not None
    assert (rollout.outcome, rollout.why, rollout.exposed.total) == ("rolled_back", "as golden as ever", 0)
    assert world.state.outcomes[-1].result == "rolled_back"
    assert not any(
        set(state.split.route.weights) - {"chat-r0"} for state in world.states if state.split.route
    )


def test_a_failed_examination_is_not_evidence_against_the_value() -> None:
    world = proposed(refuses={"examine"}).approve().until("cooldown")

    assert world.state.outcomes[-1].result == "undecided"


def test_an_examination_without_an_answer_times_out() -> None:
    world = World(machine=Machine(replace(ALTERING.rules, exam=GoldenPromptOptions(at_most_s=90)))).start()
    world.until("proposed").approve().until("warming").tick()
    world.pending = []

    world.tick(149)
    assert world.state.phase is Phase.WARMING
    world.tick(3)

    assert world.state.rollout is not None
    assert world.state.rollout.why == "warming took longer than 90 s"


def test_every_change_is_examined_if_configured() -> None:
    world = (
        World(machine=Machine(rules(exam=GoldenPromptOptions(always=True))))
        .start()
        .until("proposed")
        .approve()
    )

    assert len(examinations(world.until("canary"))) == 1


def test_a_restart_repeats_the_examination_and_a_late_outcome_is_ignored() -> None:
    world = proposed().approve().until("warming").tick()
    [first] = [effect for effect in world.pending if isinstance(effect, fx.Examine)]

    world.start()
    [again] = [effect for effect in world.pending if isinstance(effect, fx.Examine)]
    late = world.state
    world.feed(*world.perform(first))

    assert again.number > first.number
    assert world.state == late
    assert world.until("canary").state.phase is Phase.CANARY


def test_a_swapped_blue_is_examined_before_it_stops() -> None:
    world = World.servers(1, "swap", machine=ALTERING).start().until("proposed").approve().until("canary")

    kinds = [effect.kind for effect in world.performed if not isinstance(effect, fx.KeepAlive)]
    first, second = examinations(world)
    assert kinds.index("examine") < kinds.index("stop")
    assert (first.blue.name, first.green) == ("vllm0", None)
    assert second.blue.name == "vllm0"
    assert second.green is not None


@pytest.mark.parametrize(("strategy", "count"), [("replace", 3), ("surge", 2)])
def test_only_the_first_of_several_greens_is_examined(strategy: Strategy, count: int) -> None:
    world = World.servers(count, strategy, machine=ALTERING).start().until("proposed").approve()

    world.until("promoting", 400)

    assert len(examinations(world)) == 1
    assert examinations(world)[0].blue.name in world.old


def test_an_abort_during_the_examination_rolls_back() -> None:
    world = proposed().approve().until("warming").tick()

    world.feed(e.Aborted(at=world.at, actor="bob", reason="no")).until("cooldown")

    assert world.state.outcomes[-1].result == "aborted"
