"""Which rollouts are compared with their prediction, with which counts and which law."""

from dataclasses import replace
from datetime import timedelta

from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Plan, Proposal, Server, Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.prediction.check import CheckRequest
from flettner.agent.runtime.held_rollout import HeldRollout
from flettner.performance_model.step_law import UncertainLaw
from tests.support.fast_time import NOON
from tests.support.learned import LAW, learned_model
from tests.support.suggestions import MADE

BEFORE = learned_model(1.0, max_num_seqs=8)
REFITTED = replace(BEFORE, law=UncertainLaw(law=replace(LAW, step_us=99_000)))
STEPS = tuple(Step(weight=weight, requests=1, at_least_s=1, at_most_s=600) for weight in (50, 100))
PLAN = Plan(steps=STEPS, start_s=60, warm_up_requests=1, warm_up_s=1, drain_s=1, lease_s=5)
CHANGE = Proposal(rule="PM1", to={"max_num_seqs": 32}, why="w", expects="e", risks="r", source="s")
IDLE = State(
    target="chat",
    fleet=Fleet(servers=(Server(name="chat-r0", setting=BEFORE.config.setting),)),
)


def in_canary(step: int, served: int = 0) -> State:
    rollout = Canary(
        id="chat-o1",
        suggestion=replace(MADE, proposal=CHANGE),
        server="chat-r1",
        replicas={},
        plan=PLAN,
        started_at=NOON,
        phase_since=NOON,
        step=step,
        step_since=NOON,
        green_counts=RequestCounts(total=served),
    )
    return replace(IDLE, phase=Phase.CANARY, rollout=rollout)


def observe(*states: State) -> list[CheckRequest]:
    """A look every 100 s; the law is another one during the rollout."""
    watch, requests = HeldRollout(), []
    for number, state in enumerate(states):
        learned = BEFORE if state.phase is Phase.OBSERVING else REFITTED
        request = watch.observe(state, learned, Slo(), NOON + timedelta(seconds=100 * number))
        requests += [request] if request else []
    return requests


def test_a_promoted_rollout_is_compared_once_by_the_law_from_before_it() -> None:
    held = in_canary(1, served=400)
    promoting = replace(held, phase=Phase.PROMOTING)

    (request,) = observe(IDLE, in_canary(0, 90), in_canary(1, 100), held, promoting, promoting, IDLE)

    assert request.learned.law == BEFORE.law
    assert request.counts.served == 400
    assert request.held_s == 300
    assert (request.rollout, request.to) == ("chat-o1", {"max_num_seqs": 32})


def test_a_rollout_that_was_taken_back_is_not_compared() -> None:
    held = in_canary(1, served=400)

    assert not observe(IDLE, held, replace(held, phase=Phase.ROLLING_BACK), IDLE)


def test_nothing_is_compared_without_a_model_from_before() -> None:
    held = in_canary(1, served=400)

    assert not observe(held, replace(held, phase=Phase.PROMOTING))
