"""The daemon's view for a caller with access to some targets; other targets do not exist in it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from flettner.agent.api.daemon_view import DaemonView
from flettner.agent.api.tokens import Holder
from flettner.agent.audit.history import Accepted, Point
from flettner.agent.domain.events import Event
from flettner.agent.domain.model import Server, Slo
from flettner.agent.domain.reading import Reading, SourceState
from flettner.agent.domain.state import Rollout, State, Suggestion
from flettner.agent.notify.delivery import DeliveryCounts
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.what_if import WhatIf
from flettner.agent.telemetry.self_metrics import SelfMetrics
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Setting

T = TypeVar("T")
ScopedRecord = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ScopedView:
    """A DaemonView. Each operation receives one, so that none can omit the scope check."""

    whole: DaemonView
    holder: Holder

    def states(self) -> Mapping[str, State]:
        return self._mine(self.whole.states())

    def readings(self) -> Mapping[str, Reading | None]:
        return self._mine(self.whole.readings())

    def findings(self) -> Mapping[str, Sequence[Finding]]:
        return self._mine(self.whole.findings())

    def models(self) -> Mapping[str, LearnedModel | None]:
        return self._mine(self.whole.models())

    def sources(self) -> Mapping[str, Mapping[str, SourceState]]:
        return self._mine(self.whole.sources())

    def slos(self) -> Mapping[str, Slo]:
        return self._mine(self.whole.slos())

    async def submit(self, target: str, event: Event) -> State:
        if not self.holder.sees(target):
            raise KeyError(target)
        return await self.whole.submit(target, event)

    async def log(self, target: str, server: Server) -> tuple[str, ...]:
        if not self.holder.sees(target):
            raise KeyError(target)
        return await self.whole.log(target, server)

    async def predict(self, target: str, changes: Setting, rate: float, prompt: float) -> WhatIf:
        if not self.holder.sees(target):
            raise KeyError(target)
        return await self.whole.predict(target, changes, rate, prompt)

    def wait_s(self, actor: str, target: str) -> float:
        return self.whole.wait_s(actor, target)

    def accepted(self, request: str) -> Accepted | None:
        return self.whole.accepted(request)

    def suggestions(self) -> Sequence[Suggestion]:
        return [one for one in self.whole.suggestions() if self.holder.sees(one.target)]

    def points(self, rollout: str) -> Sequence[Point]:
        mine = any(one.id == rollout for _, one in self.rollouts())
        return self.whole.points(rollout) if mine else ()

    def minutes(self, target: str) -> Sequence[MinuteRow]:
        return self.whole.minutes(target) if self.holder.sees(target) else ()

    def rollouts(self) -> Sequence[tuple[str, Rollout]]:
        return [(target, one) for target, one in self.whole.rollouts() if self.holder.sees(target)]

    def records(self, after: int, limit: int) -> Sequence[ScopedRecord]:
        """Records of other targets only with their number, so that pages and cursor match the journal."""
        return [self._shown(record) for record in self.whole.records(after, limit)]

    async def follow(self) -> AsyncIterator[ScopedRecord]:
        records = self.whole.follow()
        try:
            async for record in records:
                yield self._shown(record)
        finally:
            close = getattr(records, "aclose", None)
            if close is not None:
                await close()

    def report_failed_auth(self, attempts: Mapping[str, int]) -> None:
        self.whole.report_failed_auth(attempts)

    def ready(self) -> bool:
        return self.whole.ready()

    def now(self) -> datetime:
        return self.whole.now()

    def counters(self) -> Mapping[str, float]:
        return self.whole.counters()

    def clock(self) -> float:
        return self.whole.clock()

    def self_metrics(self) -> Mapping[str, SelfMetrics]:
        return self._mine(self.whole.self_metrics())

    def delivery_counts(self) -> Mapping[str, DeliveryCounts]:
        return self.whole.delivery_counts()

    def _shown(self, record: ScopedRecord) -> ScopedRecord:
        mine = self.holder.sees(str(record.get("target") or ""))
        return record if mine else {"seq": record["seq"]}

    def _mine(self, by_target: Mapping[str, T]) -> Mapping[str, T]:
        return {name: value for name, value in by_target.items() if self.holder.sees(name)}
