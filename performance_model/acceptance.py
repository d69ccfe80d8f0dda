"""Whether a fitted law may be believed: it must predict windows that it has not seen.

For each of the last WINDOWS windows the law is fitted to the steps before it and predicts the requests in it.
The limits are between what such fits reach on ordinary traffic (4 % and 15 to 20 %) and what a shift of the
mechanism shows (above 15 % on the tokens).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.fit import LEAST_WINDOWS, fit_law
from flettner.performance_model.outcome import mean_gap_s
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.request_state import RequestState
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.trace import Trace
from flettner.performance_model.work_windows import WorkWindow
from flettner.primitives.quantiles import histogram_quantile, mean, quantile

WINDOWS, WINDOW_S = 5, 60.0
ITL_ERROR, TTFT_ERROR = 0.10, 0.25
TTFT_QUANTILE = 0.9
TAIL_S = 60.0  # after a window, in which its requests end


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """Measured of one request of the trace, at the same place in its order."""

    ttft_s: float
    itl_s: float  # mean; 0 for a single token


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWindow:
    """What the requests of a window measured; times are on the clock of the trace.

    Records of single requests are of those that arrived in it (`by_arrival`). vLLM's histograms count a TTFT
    at the first token and the rest at a request's end; `ttft_edges` are the finite edges of that of the TTFT.
    """

    begin_s: float
    end_s: float
    itl_s: float  # mean over the requests
    ttft_s: float  # 90 % quantile
    ttft_edges: tuple[float, ...] = ()
    by_arrival: bool = True
    outside_s: float = 0.0  # of each TTFT, the time outside the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Relative errors of the mean time between tokens and of the 90 % quantile of TTFT, by window."""

    itl: tuple[float, ...] = ()
    ttft: tuple[float, ...] = ()

    @property
    def is_accepted(self) -> bool:
        if len(self.itl) < WINDOWS or len(self.ttft) < WINDOWS:
            return False
        return self.itl_error < ITL_ERROR and self.ttft_error < TTFT_ERROR

    @property
    def itl_error(self) -> float:
        """Mean size."""
        return mean(abs(error) for error in self.itl) or 0.0

    @property
    def ttft_error(self) -> float:
        return mean(abs(error) for error in self.ttft) or 0.0

    def add(self, errors: tuple[float, float]) -> "Acceptance":
        """With one more window; the last WINDOWS are kept."""
        return Acceptance(itl=(*self.itl, errors[0])[-WINDOWS:], ttft=(*self.ttft, errors[1])[-WINDOWS:])


def check_window(
    trace: Trace, law: StepLaw, limits: EngineLimits, measured: MeasuredWindow
) -> tuple[float, float] | None:
    """The relative errors of `itl_s` and `ttft_s`; None if no request is predicted in the window.

    The trace should go on for TAIL_S after it: with nothing behind them its last requests look too fast.
    """
    arrivals = [request for request in trace if request.arrival_s < measured.end_s + TAIL_S]
    if not arrivals:
        return None
    requests = [
        request
        for request in ReplayedScheduler(arrivals, law, limits).run().requests
        if request.first_s is not None
    ]

    def inside(at_s: float | None) -> bool:
        return at_s is not None and measured.begin_s <= at_s < measured.end_s

    by_arrival = measured.by_arrival
    begun = [request for request in requests if inside(request.arrival_s if by_arrival else request.first_s)]
    ended = begun if by_arrival else [request for request in requests if inside(request.last_s)]
    if not begun or not ended:
        return None
    waits = sorted(_ttft_s(request) + measured.outside_s for request in begun)
    wait_s = (
        bucket_quantile(waits, measured.ttft_edges) if measured.ttft_edges else quantile(waits, TTFT_QUANTILE)
    )
    gap_s = mean(gap for request in ended if (gap := mean_gap_s(request)) > 0) or 0.0
    return _error(gap_s, measured.itl_s), _error(wait_s, measured.ttft_s)


def check_ahead(
    trace: Trace,
    served: Sequence[ServedRequest],
    steps: Sequence[tuple[float, WorkWindow]],
    limits: EngineLimits,
) -> Acceptance:
    """`steps`: each window of work with the time of its end, on the clock of the trace."""
    last = int(trace[-1].arrival_s // WINDOW_S)
    acceptance = Acceptance()
    for number in range(max(1, last - WINDOWS + 1), last + 1):
        begin_s = number * WINDOW_S
        before = [work for at_s, work in steps if at_s <= begin_s]
        real = [
            record
            for request, record in zip(trace, served, strict=True)
            if begin_s <= request.arrival_s < begin_s + WINDOW_S
        ]
        if len(before) < LEAST_WINDOWS or not real:
            continue
        law = fit_law(before, draws=0).law
        measured = measure_records(real, begin_s, begin_s + WINDOW_S)
        if (errors := check_window(trace, law, limits, measured)) is not None:
            acceptance = acceptance.add(errors)
    return acceptance


def measure_records(
    served: Sequence[ServedRequest], begin_s: float, end_s: float, *, outside_s: float = 0.0
) -> MeasuredWindow:
    """The window of the requests that arrived in it."""
    return MeasuredWindow(
        begin_s=begin_s,
        end_s=end_s,
        itl_s=mean(record.itl_s for record in served if record.itl_s > 0) or 0.0,
        ttft_s=quantile(sorted(record.ttft_s for record in served), TTFT_QUANTILE),
        outside_s=outside_s,
    )


def bucket_quantile(values: Sequence[float], edges: Sequence[float]) -> float:
    """The 90 % quantile of sorted values as a histogram with these edges shows it."""
    counts = [0.0] * (len(edges) + 1)
    for value in values:
        counts[bisect_left(edges, value)] += 1
    return histogram_quantile(edges, counts, TTFT_QUANTILE)


def _ttft_s(request: RequestState) -> float:
    return (request.first_s or 0.0) - request.arrival_s


def _error(predicted: float, measured: float) -> float:
    return max(predicted, 1e-9) / max(measured, 1e-9) - 1
