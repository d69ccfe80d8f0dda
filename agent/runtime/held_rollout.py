"""Watches a rollout's hold step, so that its prediction can be compared with its measurement."""

from dataclasses import dataclass, replace
from datetime import datetime

from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.transitions import IDLE
from flettner.agent.prediction.check import CheckRequest
from flettner.agent.prediction.learned import LearnedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hold:
    """The hold step so far."""

    rollout: str
    counts: RequestCounts  # of the new servers
    since: datetime
    at: datetime


@dataclass(slots=True)
class HeldRollout:
    """Kept in memory: a rollout during which the daemon restarts is not compared."""

    _before: LearnedModel | None = None  # the latest from before the rollout
    _hold: _Hold | None = None

    def observe(
        self, state: State, learned: LearnedModel | None, slo: Slo, at: datetime
    ) -> CheckRequest | None:
        """Called every few seconds. Returns the comparison to make once the hold step has passed."""
        rollout, hold = state.rollout, self._hold
        if isinstance(rollout, Canary) and state.phase is Phase.CANARY and _is_held(rollout):
            since = rollout.step_since or at
            self._hold = _Hold(rollout=rollout.id, counts=rollout.green_counts, since=since, at=at)
            return None
        if state.phase in IDLE and hold is None:
            self._before = learned
        if hold is None or state.phase is Phase.CANARY:
            return None
        self._hold = None
        if rollout is None or rollout.id != hold.rollout or rollout.outcome == "rolled_back":
            return None
        if state.phase is Phase.ROLLING_BACK or learned is None or self._before is None:
            return None
        return CheckRequest(
            learned=replace(learned, law=self._before.law, config=self._before.config),
            slo=slo,
            at=at,
            rollout=hold.rollout,
            to=rollout.suggestion.proposal.to,
            counts=hold.counts,
            held_s=(hold.at - hold.since).total_seconds(),
        )


def _is_held(canary: Canary) -> bool:
    return canary.step == len(canary.plan.steps) - 1 and canary.step_since is not None
