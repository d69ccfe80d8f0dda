"""Each pair of phase and event is handled, or listed here with the reason why it is ignored."""

from typing import get_args

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.answers import AnswerComparison
from flettner.agent.domain.model import PreflightResult
from flettner.agent.domain.state import Phase
from flettner.agent.machine.step import HANDLERS
from flettner.agent.machine.transitions import WITHOUT_ROLLOUT
from tests.support.machine_stories import BLUE, World

IDLE = {Phase.OBSERVING, Phase.CHECKING, Phase.PROPOSED, Phase.COOLDOWN}

IGNORED: dict[tuple[str, type[e.Event]], set[Phase]] = {
    ("nothing is open that could be decided", e.Approved): set(Phase) - {Phase.CHECKING, Phase.PROPOSED},
    ("nothing is open that could be denied", e.Denied): set(Phase) - {Phase.CHECKING, Phase.PROPOSED},
    ("one rollout at a time: ask again when it has ended", e.ChangeAsked): set(Phase) - IDLE,
    ("the loop waits for the end of the rollout", e.Reconfigured): set(Phase) - set(WITHOUT_ROLLOUT),
    ("there is no rollout, or it is already on its way back", e.Aborted): {
        Phase.ROLLING_BACK,
        Phase.RESTORING,
        Phase.HALTED,
    },
    ("the outcome of a launch that is no longer wanted", e.Launched): set(Phase)
    - {Phase.LAUNCHING, Phase.ROLLING_BACK, Phase.RESTORING},
    ("an answer about what is no longer asked", e.Preflighted): set(Phase) - {Phase.CHECKING},
    ("the outcome of a stop that is no longer wanted", e.Stopped): set(Phase)
    - {Phase.DRAINING, Phase.ROLLING_BACK, Phase.SAVING},
    ("the outcome of a warm-up that is no longer wanted", e.Warmed): set(Phase) - {Phase.WARMING},
    ("the outcome of an examination that is no longer wanted", e.Examined): set(Phase)
    - {Phase.DRAINING, Phase.WARMING},
    ("the outcome of a drain that is no longer wanted", e.Drained): set(Phase)
    - {Phase.DRAINING, Phase.PROMOTING, Phase.ROLLING_BACK, Phase.SAVING},
    ("the outcome of a retirement on the side", e.Retired): set(Phase)
    - {Phase.PROMOTING, Phase.ROLLING_BACK, Phase.RESTORING},
    ("no change of a running server is awaited", e.KnobsSet): set(Phase) - {Phase.TRIAL, Phase.ROLLING_BACK},
    ("no split is awaited", e.Routed): {
        Phase.CHECKING,
        Phase.LAUNCHING,
        Phase.WARMING,
        Phase.TRIAL,
        Phase.HALTED,
    },
    ("every phase records them", e.AdaptersRead): set(Phase),
    ("an operator must look first", e.Observed): {Phase.HALTED},
    ("an operator must look first; nothing is awaited", e.EffectFailed): {Phase.HALTED},
    ("an operator must look first; who is gone is noted all the same", e.ServerLost): {Phase.HALTED},
}


def test_every_pair_is_handled_or_ignored_for_a_reason() -> None:
    every = {(phase, kind) for phase in Phase for kind in get_args(e.Event)}
    ignored = {(phase, kind) for (_, kind), phases in IGNORED.items() for phase in phases}

    assert not every - set(HANDLERS) - ignored
    assert not set(HANDLERS) & ignored


@pytest.mark.parametrize("phase", ["observing", "checking", "launching", "warming", "canary", "promoting"])
def test_an_outcome_that_is_not_awaited_changes_nothing(phase: str) -> None:
    world = World(waiting=0 if phase == "observing" else 12).start()
    if phase not in {"observing", "checking"}:
        world.until("proposed").approve()
    world.until(phase)
    quality = AnswerComparison(ok=True, why="")
    shown: dict[str, dict[str, object]] = {
        "Preflighted": {"preflight": PreflightResult(problem="no")},
        "Launched": {"server": BLUE},
        "Examined": {"quality": quality},
        "Drained": {"open": 3},
        "EffectFailed": {"why": "too late"},
    }

    for kind in get_args(e.EffectOutcome):
        late = kind(at=world.at, number=world.state.effects.last_number + 1, **shown.get(kind.__name__, {}))

        assert world.machine.step(world.state, late) == (world.state, ())
