"""Loads that change, and what follows them: savings, and switches between two settings. Times are scaled.

A switch waits for six seconds instead of five minutes, and a minute of a saving has ten seconds, so that a
history of two minutes has several days of a load.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import log
from typing import TYPE_CHECKING

import pytest

from flettner.agent.domain import regimes as plans
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Buckets, Reading
from flettner.agent.domain.regimes import Regime, RegimePlan
from flettner.agent.judge.blocks import counting, verdict
from flettner.agent.machine import regimes, saving
from flettner.vllm_facts.values import Value
from tests.simulation.scenario import Act

if TYPE_CHECKING:
    from tests.simulation.history import History

CAP = "max_num_seqs"
LASTS_S, MOST_SWITCHES, MOST_COLD_SWITCHES = 6, 3, 2
MINUTE_S = 10
USUAL_RPS, PEAK_RPS = 5, 20  # of the world
LATE = 0.2  # of the requests, with the values for the other load
SCALED: tuple[tuple[object, str, object], ...] = (
    (plans, "LASTS_S", LASTS_S),
    (plans, "COLD_LASTS_S", LASTS_S),
    (plans, "MOST_SWITCHES", MOST_SWITCHES),
    (plans, "MOST_COLD_SWITCHES", MOST_COLD_SWITCHES),
    (regimes, "AGAIN_AFTER", timedelta(seconds=15)),
    (regimes, "RETRY_AFTER", timedelta(seconds=2)),
    (regimes, "CHECKED_S", 20),
    (regimes, "CHECKED_REQUESTS", 60),
    (saving, "MINUTE_S", MINUTE_S),
    (saving, "UNSEEN_S", 10),
    (counting, "SHORT_S", (4.0, 6.0)),
    (counting, "COUNTED_LEAST_S", 2.0),
    (verdict, "SURE_BETTER", log(2.0)),
)
ANSWERS = {
    is_long: Buckets(edges=(1000.0,), counts=(0.0, 5.0) if is_long else (5.0, 0.0), sum=5 * tokens)
    for is_long, tokens in ((False, 400.0), (True, 6000.0))
}
"""The lengths of the answers of a second."""


@contextmanager
def scaled_times() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in SCALED:
            patch.setattr(module, name, value)
        yield


@dataclass(frozen=True, slots=True)
class TwoSettings:
    """Proposes to switch between the caps for short and for long answers."""

    below: Value
    above: Value
    cold: bool

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        del reading
        if context.setting.get(CAP) != self.below:
            return ()
        plan = RegimePlan(
            metric="answer_tokens",
            low=1000,
            high=3000,
            below=Regime(values={CAP: self.below}, missed=0.3),
            above=Regime(values={CAP: self.above}, missed=0.3),
            cold=self.cold,
        )
        proposal = Proposal(
            rule="PM4",
            to={CAP: self.above},
            why="answers have two lengths",
            expects="more in time",
            risks="a prediction",
            source="simulation",
            klass="gated",
            regimes=plan,
        )
        return (proposal,)


def change_lengths(history: "History", act: Act) -> bool:
    """The answers get long, or short again."""
    del act
    history.world.is_long = not history.world.is_long
    history.say(f"   answers are {'long' if history.world.is_long else 'short'}")
    return True


def return_load(history: "History", act: Act) -> bool:
    """More requests come than the remaining servers carry, for a while."""
    world = history.world
    world.rate = PEAK_RPS

    def end() -> None:
        world.rate = USUAL_RPS

    history.loop.outside(act.lasts_s, end)
    return True
