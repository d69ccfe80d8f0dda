"""Whether a fitted law may be believed: it must predict windows that it has not seen.

For each of the last WINDOWS windows the law is fitted to the steps before it and predicts the requests that
arrived in it. The limits are between what such fits reach on ordinary traffic (4 % and 15 to 20 %) and what
a shift of the mechanism shows (above 15 % on the tokens).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from performance_model.engine import Engine
from performance_model.engine_limits import EngineLimits
from performance_model.fit import LEAST_WINDOWS, fit_law
from performance_model.outcome import mean_gap_s, quantile
from performance_model.trace import Trace
from performance_model.work_windows import WorkWindow

WINDOWS, WINDOW_S = 5, 60.0
ITL_ERROR, TTFT_ERROR = 0.10, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """Measured of one request of the trace, at the same place in its order."""

    ttft_s: float
    itl_s: float  # mean; 0 for a single token


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Relative errors of the mean time between tokens and of the 90 % quantile of TTFT, by window."""

    itl: tuple[float, ...]
    ttft: tuple[float, ...]

    @property
    def is_accepted(self) -> bool:
        if len(self.itl) < WINDOWS or len(self.ttft) < WINDOWS:
            return False
        return _mean_size(self.itl) < ITL_ERROR and _mean_size(self.ttft) < TTFT_ERROR


def check_ahead(
    trace: Trace,
    served: Sequence[ServedRequest],
    steps: Sequence[tuple[float, WorkWindow]],
    limits: EngineLimits,
    *,
    attention_us: float = 0.0,
) -> Acceptance:
    """`steps`: each window of work with the time of its end, on the clock of the trace."""
    last = int(trace[-1].arrival_s // WINDOW_S)
    itl, ttft = [], []
    for number in range(max(1, last - WINDOWS + 1), last + 1):
        before = [work for at_s, work in steps if at_s <= number * WINDOW_S]
        if len(before) < LEAST_WINDOWS:
            continue
        law = fit_law(before, attention_us=attention_us, draws=0).law
        known = [one for one in trace if one.arrival_s < (number + 1) * WINDOW_S]
        run = Engine(known, law, limits).run()
        chosen = [at for at, one in enumerate(known) if one.arrival_s >= number * WINDOW_S]
        predicted = [run.requests[at] for at in chosen if run.requests[at].first_s is not None]
        real = [served[at] for at in chosen]
        if not predicted or not real:
            continue
        itl.append(_error([mean_gap_s(one) for one in predicted], [one.itl_s for one in real], mean=True))
        waits = [(one.first_s or 0.0) - one.arrival_s for one in predicted]
        ttft.append(_error(waits, [one.ttft_s for one in real], mean=False))
    return Acceptance(itl=tuple(itl), ttft=tuple(ttft))


def _error(predicted: Sequence[float], real: Sequence[float], *, mean: bool) -> float:
    """Of the mean of the values above 0, else of their 90 % quantile."""
    if mean:
        sides = [[value for value in values if value > 0] or [1e-9] for values in (predicted, real)]
        guess, truth = (sum(values) / len(values) for values in sides)
    else:
        guess, truth = quantile(sorted(predicted), 0.9), quantile(sorted(real), 0.9)
    return guess / max(truth, 1e-9) - 1


def _mean_size(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / len(errors)
