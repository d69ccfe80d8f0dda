"""Compares a prediction with what the new servers of a rollout did while they were held. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from flettner.agent.domain.model import Slo
from flettner.agent.domain.prediction_check import PredictionCheck
from flettner.agent.domain.request_counts import RequestCounts, quantile
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.served_load import ServedLoad, find_load
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.resample import window
from flettner.performance_model.trace import duration_s
from flettner.vllm_facts.values import Knob, Value

LEAST_REQUESTS = 50  # measured


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What a rollout is checked with.

    `learned`: its law and its `config` are of the time before the rollout, its trace is the latest.
    `counts`: of the new servers in the last `held_s`.
    """

    learned: LearnedModel
    slo: Slo
    at: datetime
    rollout: str
    to: Mapping[Knob, Value]
    counts: RequestCounts
    held_s: float


def check_prediction(request: CheckRequest) -> PredictionCheck | None:
    """None where nothing can be compared: an unknown law, a flag that is not modelled, too few requests."""
    if request.counts.served < LEAST_REQUESTS:
        return None
    try:
        load = find_load(request.learned, request.slo)
        if not all(hasattr(load.present, knob) or knob == "gpu_memory_utilization" for knob in request.to):
            return None
        held = _latest(load, request.held_s)
        predicted = held.predict(held.limits_with(request.to), is_load_known=True)
    except PredictionInputError:
        return None
    return PredictionCheck(
        at=request.at,
        rollout=request.rollout,
        to=dict(request.to),
        requests=request.counts.served,
        predicted={
            name: predicted[name] for name in ("attainment", "ttft_p90_s", "itl_p90_s") if name in predicted
        },
        measured=_measured(request.counts),
    )


def _latest(load: ServedLoad, seconds: float) -> ServedLoad:
    """The load that came meanwhile. Raises PredictionInputError if none did."""
    total_s = duration_s(load.trace)
    since_s = max(0.0, total_s - seconds)
    part = window(load.trace, since_s, total_s - since_s + 1e-6)
    if not part:
        raise PredictionInputError("no request is recorded of the time")
    return replace(load, trace=part)


def _measured(counts: RequestCounts) -> Mapping[str, float]:
    values = {
        "attainment": 1 - counts.missed / counts.served,
        "ttft_p90_s": quantile(counts.ttft, 0.9),
        "itl_p90_s": quantile(counts.itl, 0.9),
    }
    return {name: value for name, value in values.items() if value is not None}
