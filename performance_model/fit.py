"""Fits the law of step time to recorded windows.

Non-negative least squares for each knee of a grid; the knee with the smallest residual wins. Rows are
weighted by 1/sqrt(seconds), as the variance of a sum of steps grows with its length. After the first fit
the rows with a residual above REJECT robust standard deviations are left out once: hiccups, compilation,
another process on the GPU.

A prior counts as further rows, one for each coefficient and one for the knee. It decides what the windows do
not tell: those of histograms hold sums over a second, in which a token, a sequence and the knee look alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from random import Random
from statistics import median

from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import LargestStep
from flettner.performance_model.least_squares import solve_non_negative
from flettner.performance_model.step_law import COEFFICIENTS, StepLaw, UncertainLaw
from flettner.performance_model.work_windows import WorkWindow

KNEES = (0, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192)
"""Tokens. Kernel profiles of ten pairs of GPU and model in 16 bits have their knee between 50 and 140
(microsoft/vidur, data/profiling/compute; casys-kaist/LLMServingSim, profiler/perf); weights of 4 bits are
read four times as fast, which puts it at a quarter."""

LEAST_WINDOWS = 8  # twice the columns
REJECT = 3.5  # robust standard deviations: 1 row in 2,000 of a normal distribution
_MAD_TO_SD = 1.4826
PRIOR_SIGMA = 0.36  # relative, of one coefficient: hardware_prior.COMMON and EACH together
PRIOR_KNEE = 0.4  # relative; measured knees are 0.35 to 0.65 of the prior's ratio, its middle is 0.5
COUNTED_WEIGHT, LOGGED_WEIGHT = 10.0, 3.0
"""Of a prior, in residuals of a window of histograms or of the iteration log. Errors of histograms do not
average out: a bucket misplaces steps in all windows alike. In a world of bench.tuning 3 left the knee at 0
(rank correlation 0.4), 10 found it (0.9). The log leaves less open, but long prompts in large steps do not
show the knee: without a prior, steps of other sizes were predicted with a mean error of 6 %, with 1 of 4 %,
with 3 of 1 %, with 10 of 2 % (bench.prediction.truth, rag, T4). On the H100, whose knee of 50 the data sheet
puts at 138, 3 makes 1 % into 3 %."""
DRAWS = 16


def fit_law(
    windows: Sequence[WorkWindow],
    *,
    attention_us: float = 0.0,
    draws: int = DRAWS,
    seed: int = 0,
    source: str = "",
    prior: StepLaw | None = None,
    prior_weight: float = COUNTED_WEIGHT,
) -> UncertainLaw:
    """The law, with `draws` refits of resampled windows as its uncertainty.

    `prior`: what is expected before any window, such as `hardware_prior.scaled_prior`.
    `attention_us` is used where neither the windows nor a prior tell their prompts' attention. Raises
    PredictionInputError if the windows are too few or cannot tell a step from a token.
    """
    if len(windows) < LEAST_WINDOWS:
        raise PredictionInputError(
            f"{len(windows)} windows of steps: a fit needs at least {LEAST_WINDOWS}; record for longer"
        )
    is_known = any(window.attention for window in windows)
    law = _fit(windows, prior, prior_weight)
    if law.step_us <= 0:
        raise PredictionInputError(
            "the recorded steps are too alike to tell what a step and what a token costs; record traffic "
            "with prompts and with different numbers of running requests"
        )
    random = Random(f"fit:{seed}")  # noqa: S311 - statistics, not cryptography
    refits = (_fit(random.choices(windows, k=len(windows)), prior, prior_weight) for _ in range(draws))
    kept = {} if is_known or prior else {"attention_us": attention_us}
    return UncertainLaw(
        law=replace(law, **kept),
        draws=tuple(replace(one, **kept) for one in refits if one.step_us > 0),
        source=source,
        fitted_to=_largest_step(windows),
    )


def _largest_step(windows: Sequence[WorkWindow]) -> LargestStep:
    """The sequences are a mean over the steps of a window, of which the single ones are not known."""
    return LargestStep(
        tokens=max(tokens for window in windows for tokens, _ in window.sizes),
        sequences=max(window.sequences / window.steps for window in windows),
    )


def _fit(windows: Sequence[WorkWindow], prior: StepLaw | None, prior_weight: float) -> StepLaw:
    law = _fit_once(windows, prior, prior_weight)
    errors = [(window.seconds - expected_s(law, window)) / sqrt(window.seconds) for window in windows]
    middle = median(errors)
    spread = _MAD_TO_SD * median(abs(error - middle) for error in errors)
    kept = [
        window
        for window, error in zip(windows, errors, strict=True)
        if abs(error - middle) <= REJECT * spread or spread == 0
    ]
    return _fit_once(kept, prior, prior_weight) if LEAST_WINDOWS <= len(kept) < len(windows) else law


def _fit_once(windows: Sequence[WorkWindow], prior: StepLaw | None, prior_weight: float) -> StepLaw:
    law, left = _solve(windows, (), None)
    if prior is None:
        return law
    weight = prior_weight * sqrt(left / len(windows))
    return _solve(windows, _prior_rows(prior, weight), _KneePrior(prior.knee, weight))[0]


def _prior_rows(prior: StepLaw, weight: float) -> list[tuple[list[float], float]]:
    """A row for each coefficient that physics tells, with what it expects of it.

    The cost of a sequence is the host's: 40 us on the machines of two recorded runs, 650 on that of a T4.
    """
    rows = []
    for at, name in enumerate(COEFFICIENTS):
        value = getattr(prior, name)
        if value > 0 and name != "sequence_us":
            row = [0.0] * len(COEFFICIENTS)
            row[at] = weight / (PRIOR_SIGMA * value)
            rows.append((row, weight / PRIOR_SIGMA))
    return rows


@dataclass(frozen=True, slots=True)
class _KneePrior:
    knee: float
    weight: float

    def cost(self, knee: float) -> float:
        if not self.knee:
            return 0.0
        return (self.weight * (knee - self.knee) / (PRIOR_KNEE * self.knee)) ** 2


def _solve(
    windows: Sequence[WorkWindow], more: Sequence[tuple[list[float], float]], knees: _KneePrior | None
) -> tuple[StepLaw, float]:
    """The law with the smallest sum of squared residuals, and that sum."""
    weights = [1 / sqrt(window.seconds) for window in windows]
    wanted = [window.seconds * 1e6 * weight for window, weight in zip(windows, weights, strict=True)]
    wanted += [value for _, value in more]
    least, best = inf, StepLaw(step_us=0.0, token_us=0.0)
    for knee in KNEES:
        rows = [
            [value * weight for value in _columns(window, knee)]
            for window, weight in zip(windows, weights, strict=True)
        ]
        (a, b, c, d, e), left = solve_non_negative([*rows, *(row for row, _ in more)], wanted)
        left += knees.cost(knee) if knees else 0.0
        if left < least:
            least = left
            best = StepLaw(step_us=a, knee=knee, token_us=b, sequence_us=c, kv_read_us=d, attention_us=e)
    return best, least


def _columns(window: WorkWindow, knee: float) -> tuple[float, ...]:
    return window.steps, window.excess(knee), window.sequences, window.kv_read, window.attention


def expected_s(law: StepLaw, window: WorkWindow) -> float:
    """The seconds that the law gives for the work of a window."""
    return 1e-6 * (
        law.step_us * window.steps
        + law.token_us * window.excess(law.knee)
        + law.sequence_us * window.sequences
        + law.kv_read_us * window.kv_read
        + law.attention_us * window.attention
    )
