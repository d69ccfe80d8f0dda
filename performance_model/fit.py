"""Fits the law of step time to recorded windows.

Non-negative least squares for each knee of a grid; the knee with the smallest residual wins. Rows are
weighted by 1/sqrt(seconds), as the variance of a sum of steps grows with its length. After the first fit
the rows with a residual above REJECT robust standard deviations are left out once: hiccups, compilation,
another process on the GPU.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, sqrt
from random import Random
from statistics import median

from performance_model.errors import PredictionInputError
from performance_model.least_squares import solve_non_negative
from performance_model.step_law import StepLaw, UncertainLaw
from performance_model.work_windows import WorkWindow

KNEES = (0, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192)
"""Tokens. Kernel profiles of ten pairs of GPU and model have their knee between 50 and 140
(microsoft/vidur, data/profiling/compute; casys-kaist/LLMServingSim, profiler/perf)."""

LEAST_WINDOWS = 8  # twice the columns
REJECT = 3.5  # robust standard deviations: 1 row in 2,000 of a normal distribution
_MAD_TO_SD = 1.4826
DRAWS = 16


def fit_law(
    windows: Sequence[WorkWindow],
    *,
    attention_us: float = 0.0,
    draws: int = DRAWS,
    seed: int = 0,
    source: str = "",
) -> UncertainLaw:
    """The law, with `draws` refits of resampled windows as its uncertainty.

    `attention_us` is used where the windows do not tell their prompts' attention, as those of histograms.
    Raises PredictionInputError if the windows are too few or cannot tell a step from a token.
    """
    if len(windows) < LEAST_WINDOWS:
        raise PredictionInputError(
            f"{len(windows)} windows of steps: a fit needs at least {LEAST_WINDOWS}; record for longer"
        )
    is_known = any(window.attention for window in windows)
    law = _fit(windows)
    if law.step_us <= 0:
        raise PredictionInputError(
            "the recorded steps are too alike to tell what a step and what a token costs; record traffic "
            "with prompts and with different numbers of running requests"
        )
    random = Random(f"fit:{seed}")  # noqa: S311 - statistics, not cryptography
    refits = (_fit(random.choices(windows, k=len(windows))) for _ in range(draws))
    kept = {} if is_known else {"attention_us": attention_us}
    return UncertainLaw(
        law=replace(law, **kept),
        draws=tuple(replace(one, **kept) for one in refits if one.step_us > 0),
        source=source,
    )


def _fit(windows: Sequence[WorkWindow]) -> StepLaw:
    law = _fit_once(windows)
    errors = [(window.seconds - expected_s(law, window)) / sqrt(window.seconds) for window in windows]
    middle = median(errors)
    spread = _MAD_TO_SD * median(abs(error - middle) for error in errors)
    kept = [
        window
        for window, error in zip(windows, errors, strict=True)
        if abs(error - middle) <= REJECT * spread or spread == 0
    ]
    return _fit_once(kept) if LEAST_WINDOWS <= len(kept) < len(windows) else law


def _fit_once(windows: Sequence[WorkWindow]) -> StepLaw:
    weights = [1 / sqrt(window.seconds) for window in windows]
    wanted = [window.seconds * 1e6 * weight for window, weight in zip(windows, weights, strict=True)]
    least, best = inf, StepLaw(step_us=0.0, token_us=0.0)
    for knee in KNEES:
        rows = [
            [value * weight for value in _columns(window, knee)]
            for window, weight in zip(windows, weights, strict=True)
        ]
        (a, b, c, d, e), left = solve_non_negative(rows, wanted)
        if left < least:
            least = left
            best = StepLaw(step_us=a, knee=knee, token_us=b, sequence_us=c, kv_read_us=d, attention_us=e)
    return best


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
