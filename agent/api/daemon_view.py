"""The interfaces between the API and the daemon: of the daemon itself, and of each of its targets."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from flettner.agent.audit.history import Accepted, Point
from flettner.agent.config.changes import ReloadReport
from flettner.agent.domain.events import Event, Observed
from flettner.agent.domain.headroom import Headroom
from flettner.agent.domain.model import Server, Slo
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.domain.reading import Reading, SourceState
from flettner.agent.domain.rollout import Rollout
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.notify.delivery import DeliveryCounts, NoticeDelivery
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.observe.spending import Spending
from flettner.agent.prediction.capacity import CapacityAnswer
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.what_if import WhatIf
from flettner.agent.telemetry.self_metrics import SelfMetrics
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Setting


class TargetView(Protocol):
    """One target. All but `submit`, `log` and the predictions answer from memory."""

    @property
    def state(self) -> State: ...

    @property
    def slo(self) -> Slo: ...

    @property
    def reading(self) -> Reading | None:
        """Blue's latest reading; None if there is none yet."""
        ...

    @property
    def observed(self) -> Observed | None:
        """The latest second; None before the first."""
        ...

    @property
    def sources(self) -> Mapping[str, SourceState]:
        """By source."""
        ...

    @property
    def findings(self) -> Sequence[Finding]:
        """What lint finds in the flags in force."""
        ...

    @property
    def model(self) -> LearnedModel | None:
        """What the performance model has learned; None before the first lesson."""
        ...

    @property
    def spending(self) -> Spending:
        """Of the last minutes."""
        ...

    @property
    def headroom(self) -> Headroom | None:
        """Of the last day; None where too little is known."""
        ...

    @property
    def search_result(self) -> ModelSearchResult | None:
        """The latest search of the performance model; None without one."""
        ...

    @property
    def minutes(self) -> Sequence[MinuteRow]:
        """The last 24 hours by minute, oldest first."""
        ...

    @property
    def self_metrics(self) -> SelfMetrics:
        """Of the target's loop."""
        ...

    @property
    def progress(self) -> str:
        """What a check does that takes long, such as pulling an image; empty: nothing to tell."""
        ...

    async def submit(self, event: Event) -> State:
        """Submit the event to the target's machine; returns the resulting state after it is journalled.

        Raises JournalError if the audit journal cannot be written; nothing has changed then.
        """
        ...

    async def log(self, server: Server) -> tuple[str, ...]:
        """The last lines that a server of the target wrote, oldest first, read now or a moment ago.

        Raises ActError, within seconds, when they cannot be read.
        """
        ...

    async def predict_capacity(self) -> CapacityAnswer:
        """The highest rate within the objectives, now and after each open suggestion. Raises as `predict`."""
        ...

    async def predict(self, changes: Setting, rate: float, prompt: float) -> WhatIf:
        """What would happen with these flags, this many times as fast requests and as long prompts.

        Raises PredictionInputError, which names the missing input, and WorkerError, for a moment.
        """
        ...


class DaemonView(Protocol):
    """The daemon as seen by the API. All methods but `follow` and `reload` answer from memory."""

    def targets(self) -> Mapping[str, TargetView]:
        """By name."""
        ...

    def accepted(self, request: str) -> Accepted | None:
        """The request of this name if it was accepted recently, before the daemon started, else None.

        Raises JournalError if the journal cannot be read.
        """
        ...

    def suggestions(self) -> Sequence[Suggestion]:
        """The latest version of each, newest first."""
        ...

    def points(self, rollout: str) -> Sequence[Point]:
        """The evidence on a rollout over time, oldest first."""
        ...

    def rollouts(self) -> Sequence[tuple[str, Rollout]]:
        """(target, rollout), newest first."""
        ...

    def records(self, after: int, limit: int) -> Sequence[Mapping[str, object]]:
        """The audit records with `seq` > `after`, in order, at most `limit`. Each has an int `seq`.

        Fewer where they are large, up to the one that reaches SLICE_BYTES, but at least one. Raises
        JournalError when they cannot be read.
        """
        ...

    def follow(self) -> AsyncIterator[Mapping[str, object]]:
        """New audit records until the iterator is closed; subscribed at the latest by the first `anext`."""
        ...

    def report_failed_auth(self, attempts: Mapping[str, int]) -> None:
        """Journal the failed authentication attempts by kind. Raises JournalError."""
        ...

    def wait_s(self, actor: str, target: str) -> float:
        """Seconds until the journal has room for what this actor asks of the target; 0: it has."""
        ...

    async def reload(self, actor: str) -> ReloadReport:
        """Put the changed config file into force.

        Raises ConfigError, RestartNeededError or JournalError; then nothing changed.
        """
        ...

    def ready(self) -> bool:
        """The lock is held, recovery is done, the loop makes progress."""
        ...

    def now(self) -> datetime: ...

    def counters(self) -> Mapping[str, float]:
        """Of the daemon itself, by the names of metric_names.py: `events_total`, `audit_head_seq`."""
        ...

    def clock(self) -> float:
        """The event loop's time, the time base of `self_metrics`."""
        ...

    def delivery_counts(self) -> Mapping[str, DeliveryCounts]:
        """Delivery counts of notifications, by receiver."""
        ...

    def receivers(self) -> Mapping[str, NoticeDelivery]:
        """The receivers of notices, some of which send decisions back, by name."""
        ...


def find_warnings(counters: Mapping[str, float]) -> Iterator[str]:
    """Faults of the daemon itself, by its counters."""
    if not counters.get("audit_writable", 1):
        yield "the audit journal cannot be written: nothing new starts, rollbacks still run"
    if counters.get("audit_full"):
        yield "the audit journal is full: operators' proposals are refused; raise keep_mb or shorten keep"
    if not counters.get("config_last_reload_successful", 1):
        yield "the config file was not reloaded, the earlier one is in force: `flettner reload` says why"
