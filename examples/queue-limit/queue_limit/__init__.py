"""Answers 503 early instead of letting clients wait for minutes: bounds the queue once it has grown long."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite

from flettner.agent.domain.model import Evidence, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.vllm_facts.knobs import KNOBS

KNOB = "max_num_queued_reqs"
COVERAGE = 0.8  # of the window, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimit:
    """Rule ACME-1: after a full window with a long queue, limit it to the highest number of requests seen."""

    queue_at_least: float = 200.0  # requests that wait throughout the window

    def __post_init__(self) -> None:
        if not (isfinite(self.queue_at_least) and self.queue_at_least >= 1):
            raise ValueError(f"queue_at_least must be a number from 1, not {self.queue_at_least}")

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if context.setting.get(KNOB) is not None or not KNOBS[KNOB].in_version(reading.facts.get("version")):
            return ()
        if reading.coverage < COVERAGE or reading.waiting.low < self.queue_at_least:
            return ()
        limit = ceil(reading.running.high + reading.waiting.high)
        if not context.bound(KNOB).allows(limit):
            return ()
        return (
            Proposal(
                rule="ACME-1",
                to={KNOB: limit},
                klass="gated",  # clients would get 503, so an operator decides
                why=f"never fewer than {reading.waiting.low:.0f} requests waited for {reading.span_s:.0f} s",
                expects="accepted requests wait no longer than the longest wait of today",
                risks="clients must handle a 503",
                source="ACME's on-call handbook; vLLM 0.32 vllm/config/scheduler.py",
                evidence=(
                    Evidence(
                        metric="waiting",
                        value=reading.waiting.low,
                        unit="requests",
                        window_s=reading.span_s,
                    ),
                ),
            ),
        )


plugin = QueueLimit
