"""Says how much more load a target would carry than the peak of its last week; changes nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.errors import WorkerError
from flettner.agent.domain.headroom import LEAST_HOURS, Headroom, find_headroom
from flettner.agent.domain.model import Server
from flettner.agent.machine.transitions import IDLE
from flettner.agent.prediction.capacity import CapacityAnswer
from flettner.agent.runtime.companion import Observable
from flettner.agent.runtime.model_search import ModelSearch
from flettner.performance_model.band import Band
from flettner.performance_model.errors import PredictionInputError

LOOK_EVERY_S = 300.0
EVERY = timedelta(days=1)
AGAIN = timedelta(minutes=20)  # where nothing could be said for certain: a peak may last half an hour
log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class HeadroomNote:
    """`headroom`: the one that was made under the most load of a day, as a night says little of it.

    None before one is known, and after the servers in force changed.
    """

    search: ModelSearch
    headroom: Headroom | None = None
    _due_at: datetime | None = None
    _servers: tuple[tuple[Server, int], ...] = field(default=())  # that it is of, with their replicas

    async def run(self, target: Observable) -> None:
        while True:
            await self.update(target)
            await asyncio.sleep(LOOK_EVERY_S)

    async def update(self, target: Observable) -> None:
        """Ask the model if it is time, or if the servers in force changed."""
        at, servers = self.search.now(), tuple((s, s.replicas) for s in target.state.fleet.running)
        if servers != self._servers:
            self._servers, self.headroom, self._due_at = servers, None, None
        is_due = self._due_at is None or at >= self._due_at
        if not servers or not is_due or target.state.phase not in IDLE or len(target.peaks) < LEAST_HOURS:
            return
        rates = target.spending.rates
        try:
            answer = await self.search.predict_capacity((), rates)
        except PredictionInputError:  # something is missing yet, which costs nothing to find out
            return
        except WorkerError as error:
            self._due_at = at + AGAIN
            log.warning("headroom.failed", target=target.state.target, why=str(error))
            return
        self._due_at = at + AGAIN
        compares = rates.per_hour is not None and answer.now.rate_rps is not None
        cards = await self._ask_cards(target, answer.gpus) if compares else []
        headroom = _read(answer, target, rates, at, cards)
        if headroom is not None and not headroom.extrapolation:
            self._due_at = at + EVERY
        earlier = self.headroom if self.headroom and at - self.headroom.made_at < EVERY else None
        candidates = [each for each in (headroom, earlier) if each is not None]
        self.headroom = max(candidates, key=lambda each: each.recorded_rps, default=None)
        if self.headroom is not None and self.headroom is headroom:
            log.info("headroom.found", target=target.state.target, text=headroom.text)

    async def _ask_cards(self, target: Observable, gpus: int) -> list[tuple[str, Band, float]]:
        """Other cards, with the rate and the price of a server of so many; without those that do not fit."""
        cards = []
        for name, price in self.search.cards.items():
            try:
                rps = await self.search.predict_on_card(name)
            except (PredictionInputError, WorkerError) as error:
                log.info("headroom.card_left_out", target=target.state.target, card=name, why=str(error))
                continue
            if rps is not None:
                cards.append((name, rps, gpus * price))
        return cards


def _read(
    answer: CapacityAnswer,
    target: Observable,
    rates: GpuRates,
    at: datetime,
    cards: Sequence[tuple[str, Band, float]],
) -> Headroom | None:
    if answer.now.rate_rps is None:
        return None
    return find_headroom(
        answer.now.rate_rps,
        target.peaks,
        at=at,
        servers=answer.servers,
        share=answer.share,
        server_price=None if rates.per_hour is None else rates.per_hour * answer.gpus,
        extrapolation=answer.now.extrapolation,
        certain_rps=answer.now.certain_rps,
        recorded_rps=answer.servers * answer.rate_rps,
        cards=cards,
    )
