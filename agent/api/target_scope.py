"""The daemon's view for a caller with access to some targets; other targets do not exist in it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from flettner.agent.api.daemon_view import DaemonView, TargetView
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.tokens import Holder
from flettner.agent.audit.history import Accepted, Point
from flettner.agent.config.changes import ReloadReport
from flettner.agent.domain.rollout import Rollout
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.notify.delivery import DeliveryCounts, NoticeDelivery

ScopedRecord = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ScopedView:
    """A DaemonView. Each operation receives one, so that none can omit the scope check."""

    whole: DaemonView
    holder: Holder

    def targets(self) -> Mapping[str, TargetView]:
        return {name: target for name, target in self.whole.targets().items() if self.holder.sees(name)}

    def wait_s(self, actor: str, target: str) -> float:
        return self.whole.wait_s(actor, target)

    def accepted(self, request: str) -> Accepted | None:
        return self.whole.accepted(request)

    def suggestions(self) -> Sequence[Suggestion]:
        return [suggestion for suggestion in self.whole.suggestions() if self.holder.sees(suggestion.target)]

    def points(self, rollout: str) -> Sequence[Point]:
        mine = any(visible.id == rollout for _, visible in self.rollouts())
        return self.whole.points(rollout) if mine else ()

    def rollouts(self) -> Sequence[tuple[str, Rollout]]:
        return [(target, rollout) for target, rollout in self.whole.rollouts() if self.holder.sees(target)]

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

    async def reload(self, actor: str) -> ReloadReport:
        """The config is that of all targets."""
        raise RequestRefusedError(
            403,
            f"This reloads the config of all targets, and {actor} may see some of them only.",
            kind="role-too-low",
        )

    def ready(self) -> bool:
        return self.whole.ready()

    def now(self) -> datetime:
        return self.whole.now()

    def counters(self) -> Mapping[str, float]:
        return self.whole.counters()

    def clock(self) -> float:
        return self.whole.clock()

    def delivery_counts(self) -> Mapping[str, DeliveryCounts]:
        return self.whole.delivery_counts()

    def receivers(self) -> Mapping[str, NoticeDelivery]:
        return self.whole.receivers()

    def _shown(self, record: ScopedRecord) -> ScopedRecord:
        mine = self.holder.sees(str(record.get("target") or ""))
        return record if mine else {"seq": record["seq"]}
