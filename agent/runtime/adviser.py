"""Asks the performance model for advice about one target, in the worker process, and keeps the latest."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from agent.domain.errors import WorkerError
from agent.domain.model import Bound, Slo
from agent.domain.model_advice import ModelAdvice
from agent.domain.ports import Now
from agent.domain.state import State
from agent.machine.guard import PERSON
from agent.machine.transitions import IDLE
from agent.prediction.advice import AdviceRequest, advise
from agent.prediction.learned import LearnedModel
from agent.prediction.worker import Worker
from vllm_facts.values import Knob, Setting

LOOK_EVERY_S = 5.0
ADVISE_EVERY = timedelta(seconds=300)  # seconds of CPU each time: 1 to 2 % of a core
AT_LEAST = timedelta(seconds=60)  # between two, also where flags or suggestions changed
log = structlog.get_logger(__name__)

MODEL_RULE = "PM1"

Suggested = tuple[tuple[str, Setting], ...]


class Advised(Protocol):
    @property
    def state(self) -> State: ...


@dataclass(slots=True, kw_only=True)
class Adviser:
    """`advice` is None without an accepted law, an objective or enough traffic."""

    worker: Worker
    learned: Callable[[], LearnedModel | None]
    slo: Slo
    bounds: Mapping[Knob, Bound]
    now: Now
    advice: ModelAdvice | None = None
    _asked_at: datetime | None = None
    _asked: tuple[Setting, Suggested] | None = field(default=None)

    async def run(self, target: Advised) -> None:
        while True:
            await self.update(target.state)
            await asyncio.sleep(LOOK_EVERY_S)

    async def update(self, state: State) -> None:
        """Ask again if it is time, or if the flags in force or the suggestions changed."""
        learned, blue, at = self.learned(), state.blue, self.now()
        if learned is None or learned.law is None or blue is None:
            self.advice = None
            return
        if state.phase not in IDLE or not self._is_due(at, blue.setting, _suggested(state)):
            return
        self._asked_at, self._asked = at, (blue.setting, _suggested(state))
        request = AdviceRequest(
            learned=replace(learned, case=replace(learned.case, setting=blue.setting)),
            slo=self.slo,
            at=at,
            bounds=self.bounds,
            outcomes=state.outcomes,
            suggested=_suggested(state),
        )
        try:
            self.advice = await self.worker.call(advise, request)
        except WorkerError as error:
            log.warning("advice.failed", target=state.target, why=str(error))

    def _is_due(self, at: datetime, setting: Setting, suggested: Suggested) -> bool:
        if self._asked_at is None:
            return True
        waited = at - self._asked_at
        is_same = self.advice is not None and self._asked == (setting, suggested)
        return waited >= (ADVISE_EVERY if is_same else AT_LEAST)


def _suggested(state: State) -> Suggested:
    """The changes of the open suggestions of rules."""
    return tuple(
        (one.proposal.rule, one.proposal.to)
        for one in state.open_suggestions
        if one.proposal.rule not in (PERSON, MODEL_RULE)
    )
