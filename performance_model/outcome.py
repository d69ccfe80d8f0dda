"""What a run means for the requests: latencies, and the share that met the objectives."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flettner.performance_model.replayed_scheduler import EngineRun
from flettner.performance_model.request_state import RequestState
from flettner.primitives.quantiles import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Objectives of one request in seconds, and the share of requests that shall meet all of them."""

    ttft_s: float | None = None
    itl_s: float | None = None  # mean gap between the tokens of a request
    e2e_s: float | None = None
    share: float = 0.95

    def inside(self, outside_s: float) -> "Goals":
        """What is left of them for the engine, of a request that passes `outside_s` outside of it."""
        return replace(
            self,
            ttft_s=None if self.ttft_s is None else self.ttft_s - outside_s,
            e2e_s=None if self.e2e_s is None else self.e2e_s - outside_s,
        )

    def are_met_by(self, request: RequestState) -> bool:
        if request.first_s is None or request.last_s is None:
            return False
        return (
            (self.ttft_s is None or request.first_s - request.arrival_s <= self.ttft_s)
            and (self.itl_s is None or mean_gap_s(request) <= self.itl_s)
            and (self.e2e_s is None or request.last_s - request.arrival_s <= self.e2e_s)
        )


def mean_gap_s(request: RequestState) -> float:
    """Mean time between its tokens; 0 with a single token."""
    if request.first_s is None or request.last_s is None:
        return 0.0
    return (request.last_s - request.first_s) / max(1, request.produced - 1)


def attainment(run: EngineRun, goals: Goals) -> float:
    """Share of all requests, rejected ones too, that met the goals."""
    return sum(map(goals.are_met_by, run.requests)) / max(1, len(run.requests))


def measure(run: EngineRun, goals: Goals) -> Mapping[str, float]:
    """The numbers of a run, in seconds, shares and requests; quantiles over the served requests."""
    served = [
        request for request in run.requests if request.first_s is not None and request.last_s is not None
    ]
    arrivals_s = run.requests[-1].arrival_s
    good = attainment(run, goals)
    numbers = {
        "attainment": good,
        "peak_kv_share": run.peak_kv_share,
        "peak_step_tokens": run.largest_step.tokens,
        "peak_sequences": run.largest_step.sequences,
        "preemptions_per_request": run.preemptions / len(run.requests),
        "rejected_share": sum(request.rejected for request in run.requests) / len(run.requests),
        "tokens_per_s": sum(request.produced for request in served) / max(run.seconds, 1e-9),
    }
    if arrivals_s:  # else all come at once
        numbers["goodput_per_s"] = good * len(run.requests) / arrivals_s
    series = {
        "ttft": sorted((request.first_s or 0.0) - request.arrival_s for request in served),
        "itl": sorted(mean_gap_s(request) for request in served if request.produced > 1),
        "e2e": sorted((request.last_s or 0.0) - request.arrival_s for request in served),
    }
    for name, values in series.items():
        if values:
            numbers[f"{name}_mean_s"] = sum(values) / len(values)
            numbers.update(
                {f"{name}_p{percent}_s": quantile(values, percent / 100) for percent in (50, 90, 99)}
            )
    gap = run.gaps.quantile(0.99)
    return numbers if gap is None else {**numbers, "gap_p99_s": gap}
