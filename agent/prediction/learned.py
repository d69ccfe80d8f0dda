"""What the daemon has learned about one target: its load, and the law of step time of its servers."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from flettner.agent.domain.prediction_check import LawDrop
from flettner.performance_model.acceptance import Acceptance
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of, one_engine
from flettner.performance_model.step_law import UncertainLaw
from flettner.performance_model.trace import Trace
from flettner.vllm_facts.serve_config import ServeConfig

TRACE_S = 900.0  # the last 15 minutes: long enough for bursts, short enough for the present load
TokenCounts = Literal["records", "histograms"]
"""`records`: arrivals and lengths of single requests, from the proxy. `histograms`: arrivals from vLLM's
gauges and counters each second, lengths drawn from its histograms."""

LawSource = Literal["iteration log", "histograms", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLaw:
    """A law and the steps until `until_s` (Unix time) that it was fitted to."""

    law: UncertainLaw
    source: LawSource
    rows: int
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedModel:
    """Immutable and picklable, as the worker process computes it and computes with it.

    `trace` is the share of one server: with `servers` equal servers (pods of a ServeConfig and engines of a
    data-parallel server count singly), every `servers`-th request of the target. `law` is the accepted one;
    without it `why_no_law` says what is missing.
    """

    target: str
    server: str  # whose flags and host `config` has
    config: ServeConfig  # in force
    fitted_at: datetime
    trace: Trace
    counts_from: TokenCounts
    servers: int = 1
    kv_tokens: int | None = None  # measured size of the KV cache of one server
    law: UncertainLaw | None = None
    law_source: LawSource = ""
    rows: int = 0  # windows of steps that the law was fitted to
    acceptance: Acceptance | None = None  # errors of predictions one window ahead; None: none was checked yet
    outside_s: float = 0.0  # of a request's TTFT, mean: API server and tokenizer, which the law leaves out
    why_no_law: str = ""

    def limits(self) -> EngineLimits:
        """Of one engine. Raises PredictionInputError if its setting is not modelled."""
        return limits_of(one_engine(self.config), kv_tokens=self.kv_tokens)


def without_dropped(learned: LearnedModel, drop: LawDrop | None) -> LearnedModel:
    """`learned`, without a law from before the drop."""
    if drop is None or learned.fitted_at > drop.at:
        return learned
    return replace(learned, law=None, acceptance=None, why_no_law=describe_drop(drop))


def describe_drop(drop: LawDrop) -> str:
    return f"the law was dropped on {drop.at:%Y-%m-%d at %H:%M} UTC: {drop.why}"
