"""Asks the performance model for advice about one target, in the worker process, and keeps the latest."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.errors import WorkerError, WorkerTimeoutError
from flettner.agent.domain.events import PredictionChecked
from flettner.agent.domain.model import Bound, Slo
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.domain.ports import Now
from flettner.agent.domain.state import State
from flettner.agent.machine.open_suggestions import is_from_person
from flettner.agent.machine.transitions import IDLE, Rules
from flettner.agent.prediction.capacity import (
    CapacityAnswer,
    CapacityRequest,
    CardRequest,
    predict_capacity,
    predict_on_card,
)
from flettner.agent.prediction.check import check_prediction
from flettner.agent.prediction.learned import LearnedModel, without_dropped
from flettner.agent.prediction.model_search import ModelSearchRequest, search_settings
from flettner.agent.prediction.what_if import WhatIf, WhatIfRequest, predict_what_if
from flettner.agent.prediction.worker import Worker
from flettner.agent.runtime.companion import Observable
from flettner.agent.runtime.held_rollout import HeldRollout
from flettner.performance_model.band import Band
from flettner.performance_model.errors import PredictionInputError
from flettner.vllm_facts.values import Knob, Setting, Value

LOOK_EVERY_S = 5.0
ADVISE_EVERY = timedelta(seconds=300)  # seconds of CPU each time: 1 to 2 % of a core
AT_LEAST = timedelta(seconds=60)  # between two, also where flags or suggestions changed
log = structlog.get_logger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")
Suggested = tuple[tuple[str, Setting], ...]


@dataclass(slots=True, kw_only=True)
class ModelSearch:
    """`advice` is None without an accepted law, an objective or enough traffic."""

    worker: Worker
    learned: Callable[[], LearnedModel | None]
    now: Now
    slo: Slo = field(default_factory=Slo)
    bounds: Mapping[Knob, Bound] = field(default_factory=dict)
    cards: Mapping[str, float] = field(default_factory=dict)  # prices of others that are to be had, by name
    searches: bool = True  # False: no policy uses it and no price is set; only what someone asks for
    result: ModelSearchResult | None = None
    _held: HeldRollout = field(default_factory=HeldRollout)
    _is_predicting: bool = False
    _asked_at: datetime | None = None
    _asked: tuple[Setting, Suggested] | None = field(default=None)

    def use(self, rules: Rules) -> None:
        """Search within these rules from now on."""
        self.slo, self.bounds, self.cards, self.result = rules.slo, rules.guard.bounds, rules.cards, None
        self.searches = rules.gpu_hour is not None or any(
            getattr(policy, "uses_model_search", False) for _, policy in rules.policies
        )

    async def run(self, target: Observable) -> None:
        while True:
            await self.update(target.state, target.spending.rates)
            if (event := await self.check_rollout(target.state)) is not None:
                target.emit(event)
            await asyncio.sleep(LOOK_EVERY_S)

    async def predict_capacity(self, suggested: Suggested, rates: GpuRates) -> CapacityAnswer:
        """The highest rate within the objectives, now and with changes, by their ids. Raises as `predict`."""
        return await self._ask(
            predict_capacity,
            CapacityRequest(learned=self._learned(), slo=self.slo, suggested=suggested, rates=rates),
        )

    async def predict_on_card(self, card: str) -> Band | None:
        """The highest rate within the objectives of a server on another card. Raises as `predict`."""
        request = CardRequest(learned=self._learned(), slo=self.slo, card=card)
        return await self._ask(predict_on_card, request)

    async def predict(
        self, changes: Mapping[Knob, Value], rate: float, prompt: float, rates: GpuRates
    ) -> WhatIf:
        """What would happen. One at a time. Raises PredictionInputError or WorkerError."""
        request = WhatIfRequest(
            learned=self._learned(), slo=self.slo, changes=changes, rate=rate, prompt=prompt, rates=rates
        )
        return await self._ask(predict_what_if, request)

    def _learned(self) -> LearnedModel:
        """Raises PredictionInputError."""
        learned = self.learned()
        if learned is None:
            raise PredictionInputError("nothing is learned yet: the first minute of traffic is missing")
        return learned

    async def _ask(self, function: Callable[[Q], A], question: Q) -> A:
        """Ask the worker, one question at a time. Raises PredictionInputError or WorkerError."""
        if self._is_predicting:
            raise WorkerError("another prediction for this target is being computed")
        self._is_predicting = True
        try:
            return await self.worker.call(function, question)
        except WorkerTimeoutError as error:
            raise PredictionInputError(
                f"{error}: ask for flags, a rate or prompts nearer to the present ones"
            ) from error
        finally:
            self._is_predicting = False

    async def update(self, state: State, rates: GpuRates) -> None:
        """Ask again if it is time, or if the flags in force or the suggestions changed."""
        learned, blue, at = self.believed(state), state.fleet.blue, self.now()
        if not self.searches or learned is None or learned.law is None or blue is None:
            self.result = None
            return
        if state.phase not in IDLE or not self._is_due(at, blue.setting, _suggested(state)):
            return
        self._asked_at, self._asked = at, (blue.setting, _suggested(state))
        request = ModelSearchRequest(
            learned=replace(learned, config=replace(learned.config, setting=blue.setting)),
            slo=self.slo,
            at=at,
            bounds=self.bounds,
            outcomes=state.outcomes,
            suggested=_suggested(state),
            rates=rates,
        )
        try:
            self.result = await self.worker.call(search_settings, request)
        except WorkerError as error:
            log.warning("model_search.failed", target=state.target, why=str(error))

    async def check_rollout(self, state: State) -> PredictionChecked | None:
        """After the hold step of a rollout, compare it with what the law from before it predicts."""
        request = self._held.observe(state, self.believed(state), self.slo, self.now())
        if request is None:
            return None
        try:
            check = await self.worker.call(check_prediction, request)
        except WorkerError as error:
            log.warning("prediction.unchecked", target=state.target, why=str(error))
            return None
        return None if check is None else PredictionChecked(at=self.now(), check=check)

    def believed(self, state: State) -> LearnedModel | None:
        """What is learned, without a dropped law: the learner notices a dropped law some seconds later."""
        learned = self.learned()
        return None if learned is None else without_dropped(learned, state.law_drop)

    def _is_due(self, at: datetime, setting: Setting, suggested: Suggested) -> bool:
        if self._asked_at is None:
            return True
        waited = at - self._asked_at
        is_same = self.result is not None and self._asked == (setting, suggested)
        return waited >= (ADVISE_EVERY if is_same else AT_LEAST)


def _suggested(state: State) -> Suggested:
    """The changes of the open suggestions of rules."""
    return tuple(
        (suggestion.proposal.rule, suggestion.proposal.to)
        for suggestion in state.suggestions.open
        if not is_from_person(suggestion)
    )
