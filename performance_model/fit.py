"""Fits the law of step time to recorded windows.

Non-negative least squares for each knee of a grid; the knee with the smallest residual wins. Rows are
weighted by 1/sqrt(seconds), as the variance of a sum of steps grows with its length. After the first fit
the rows with a residual above REJECT robust standard deviations are left out once: hiccups, compilation,
another process on the GPU.

A prior counts as further rows, one for each coefficient and one for the knee. It decides what the windows do
not tell: those of histograms hold sums over a second, in which a token, a sequence and the knee look alike,
and a server that never runs more than eight sequences does not show what a sequence costs. Each draw has
another prior, as far off as priors are: what the windows do not tell stays as uncertain as it was, so the
band of a setting grows with its distance from them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from operator import mul
from random import Random
from statistics import median

from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import LargestStep
from flettner.performance_model.least_squares import NormalEquations
from flettner.performance_model.step_law import COEFFICIENTS, GRAPH_TOKENS, StepLaw, UncertainLaw, with_launch
from flettner.performance_model.work_windows import WorkWindow

KNEES = (0, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384)
"""Tokens. Kernel profiles of ten pairs of GPU and model in 16 bits have their knee between 50 and 140
(microsoft/vidur, data/profiling/compute; casys-kaist/LLMServingSim, profiler/perf); weights of 4 bits are
read four times as fast, which puts it at a quarter. GPUs with more FLOP for a byte (L40S, H100 with PCIe)
have it at twice as many."""

LEAST_WINDOWS = 8  # twice the columns
REJECT = 3.5  # robust standard deviations: 1 row in 2,000 of a normal distribution
MOST_REJECTED = 0.2  # more are no outliers: of a few windows of another setting they are all that is known
_MAD_TO_SD = 1.4826
PRIOR_SIGMA = 0.36  # relative, of one coefficient: hardware_prior.COMMON and EACH together
PRIOR_KNEE = 0.4  # relative; measured knees are 0.44 to 0.93 of the ratio of which the prior's is 0.6
SEQUENCE_SHARE = 0.03
"""Of a step: sigma of the cost of a sequence, which is the host's and the sampler's. On four GPUs it is 0.03
to 0.5 %, of an 8B model in 4 bits on a T4 2.8 %."""
SEQUENCE_SIGMA = 1.0  # the same for a draw, of its logarithm
LAUNCHES = (0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2)
"""Times as long as expected, of the launch of a step without a CUDA graph."""
LAUNCH_SIGMA = 0.8  # of its logarithm: hardware_prior.LAUNCH_LAYER_US
COUNTED_WEIGHT, LOGGED_WEIGHT = 10.0, 3.0
"""Of a prior, in residuals of a window of histograms or of the iteration log. Errors of histograms do not
average out: a bucket misplaces steps in all windows alike. In a world of bench.tuning 3 left the knee at 0
(rank correlation 0.4), 10 found it (0.9). The log leaves less open, but long prompts in large steps do not
show the knee: without a prior, steps of other sizes were predicted with a mean error of 6 %, with 1 of 4 %,
with 3 of 1 %, with 10 of 2 % (bench.prediction.truth, rag, T4). On the H100, whose knee of 50 the data sheet
puts at 138, 3 makes 1 % into 3 %."""
LEAST_ERROR = 0.005
"""Relative, of a window: a law of six numbers is no better, however well a few windows fit it."""
DRAWS = 12  # as many as a prediction replays
_AMOUNTS = {
    "step_us": "steps",
    "sequence_us": "sequences",
    "kv_read_us": "kv_read",
    "attention_us": "attention",
}
"""What each coefficient is for one of, in a window; that of `token_us` depends on the knee."""


def fit_law(
    windows: Sequence[WorkWindow],
    *,
    attention_us: float = 0.0,
    draws: int = DRAWS,
    seed: int = 0,
    source: str = "",
    prior: StepLaw | None = None,
    prior_weight: float = COUNTED_WEIGHT,
    launch_us: float = 0.0,
    least: int = LEAST_WINDOWS,
) -> UncertainLaw:
    """The law, with `draws` refits of resampled windows as its uncertainty.

    `prior`: what is expected before any window, such as `hardware_prior.scaled_prior`. `launch_us`: the same
    of the time to launch a step without a CUDA graph; 0: it is not sought. `least`: windows, of which few
    tell no more than how fast the prior is.
    `attention_us` is used where neither the windows nor a prior tell their prompts' attention. Raises
    PredictionInputError if the windows are too few or cannot tell a step from a token.
    """
    if len(windows) < least:
        raise PredictionInputError(
            f"{len(windows)} windows of steps: a fit needs at least {least}; record for longer"
        )
    is_known = any(window.attention for window in windows)
    regulariser = _Prior(law=prior, weight=prior_weight, launch_us=launch_us) if prior else None
    excess = _Excess(windows)
    law = _fit(windows, regulariser, excess)
    if law.step_us <= 0:
        raise PredictionInputError(
            "the recorded steps are too alike to tell what a step and what a token costs; record traffic "
            "with prompts and with different numbers of running requests"
        )
    random = Random(f"fit:{seed}")  # noqa: S311 - statistics, not cryptography
    refits = (
        _fit(
            random.choices(windows, k=len(windows)),
            regulariser.draw(windows, random) if regulariser else None,
            excess,
        )
        for _ in range(draws)
    )
    assumed = {} if is_known or prior else {"attention_us": attention_us}
    return UncertainLaw(
        law=replace(law, **assumed),
        draws=tuple(replace(draw, **assumed) for draw in refits if draw.step_us > 0),
        source=source,
        fitted_to=_largest_step(windows),
    )


def _largest_step(windows: Sequence[WorkWindow]) -> LargestStep:
    """The sequences are a mean over the steps of a window, of which the single ones are not known."""
    return LargestStep(
        tokens=max(tokens for window in windows for tokens, _ in window.sizes),
        sequences=max(window.sequences / window.steps for window in windows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prior:
    """`weight` in residuals of a window."""

    law: StepLaw
    weight: float
    launch_us: float

    def draw(self, windows: Sequence[WorkWindow], random: Random) -> "_Prior":
        """Another one, with other ratios to the cost of a step, as fast over the windows."""

        def off(sigma: float) -> float:
            return exp(random.gauss(0.0, sigma))

        sigmas = dict.fromkeys(COEFFICIENTS, PRIOR_SIGMA) | {"step_us": 0.0, "sequence_us": SEQUENCE_SIGMA}
        factors = {name: off(sigma) for name, sigma in sigmas.items()}
        law = replace(
            self.law,
            knee=self.law.knee * off(PRIOR_KNEE),
            **{name: getattr(self.law, name) * factor for name, factor in factors.items()},
        )
        law = law.scaled(total_s(self.law, windows) / total_s(law, windows))
        return replace(self, law=law, launch_us=self.launch_us * off(LAUNCH_SIGMA))

    def rows(self) -> list[tuple[list[float], float]]:
        """A row for each coefficient, with what physics expects of it."""
        rows = []
        for at, name in enumerate(COEFFICIENTS):
            value = getattr(self.law, name)
            sigma = SEQUENCE_SHARE * self.law.step_us if name == "sequence_us" else PRIOR_SIGMA * value
            if value > 0:
                row = [0.0] * len(COEFFICIENTS)
                row[at] = self.weight / sigma
                rows.append((row, self.weight * value / sigma))
        return rows

    def cost(self, knee: float, times: float) -> float:
        """Of this knee, and of a launch that takes `times` as long as expected."""
        off = (knee - self.law.knee) / (PRIOR_KNEE * self.law.knee) if self.law.knee else 0.0
        return self.weight**2 * (off**2 + (log(times) / LAUNCH_SIGMA) ** 2)

    def launch_tokens(self, times: float) -> float:
        return with_launch(self.law, times * self.launch_us).launch_tokens


class _Excess:
    """The tokens above a knee of each window, computed once: the draws use the same windows."""

    def __init__(self, windows: Sequence[WorkWindow]) -> None:
        self.large = {
            id(window) for window in windows if any(tokens > GRAPH_TOKENS for tokens, _ in window.sizes)
        }
        self._values: dict[tuple[int, float, float], float] = {}

    def count(self, window: WorkWindow, knee: float, launch_tokens: float) -> float:
        key = id(window), knee, launch_tokens if id(window) in self.large else 0.0
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = window.excess(knee, launch_tokens)
        return value


def _fit(windows: Sequence[WorkWindow], prior: _Prior | None, excess: _Excess) -> StepLaw:
    law = _fit_once(windows, prior, excess)
    errors = [(window.seconds - expected_s(law, window)) / sqrt(window.seconds) for window in windows]
    middle = median(errors)
    spread = _MAD_TO_SD * median(abs(error - middle) for error in errors)
    inliers = [
        window
        for window, error in zip(windows, errors, strict=True)
        if abs(error - middle) <= REJECT * spread or spread == 0
    ]
    least = max(LEAST_WINDOWS, (1 - MOST_REJECTED) * len(windows))
    return _fit_once(inliers, prior, excess) if least <= len(inliers) < len(windows) else law


def _fit_once(windows: Sequence[WorkWindow], prior: _Prior | None, excess: _Excess) -> StepLaw:
    law, left = _solve(windows, None, excess)
    if prior is None:
        return law
    free = max(1, len(windows) - len(COEFFICIENTS) - 1)
    least = LEAST_ERROR * 1e6 * sqrt(total_s(None, windows) / len(windows))
    weight = prior.weight * max(least, sqrt(left / free))
    return _solve(windows, replace(prior, weight=weight), excess)[0]


def _solve(windows: Sequence[WorkWindow], prior: _Prior | None, excess: _Excess) -> tuple[StepLaw, float]:
    """The law with the smallest sum of squared residuals, and that sum.

    First the knee is sought, then the launch with it, and then again the knee.
    """
    more = prior.rows() if prior else []
    weights = [1 / sqrt(window.seconds) for window in windows]
    wanted = [window.seconds * 1e6 * weight for window, weight in zip(windows, weights, strict=True)]
    wanted += [value for _, value in more]

    def column(name: str, values: Iterable[float]) -> list[float]:
        at = COEFFICIENTS.index(name)
        return [*map(mul, values, weights), *(row[at] for row, _ in more)]

    known = NormalEquations.build(
        [column(name, [getattr(window, amount) for window in windows]) for name, amount in _AMOUNTS.items()],
        wanted,
    )

    def solve(knee: float, times: float) -> tuple[float, float, StepLaw]:
        launch = prior.launch_tokens(times) if prior else 0.0
        tokens = column("token_us", (excess.count(window, knee, launch) for window in windows))
        coefficients, left = known.append(tokens).solve_non_negative()
        law = StepLaw(
            knee=knee, launch_tokens=launch, **dict(zip((*_AMOUNTS, "token_us"), coefficients, strict=True))
        )
        return left + (prior.cost(knee, times) if prior else 0.0), times, law

    best = min((solve(knee, 1.0) for knee in KNEES), key=_first)
    if prior and prior.launch_us and excess.large:
        best = min((solve(best[2].knee, times) for times in LAUNCHES), key=_first)
        best = min((solve(knee, best[1]) for knee in KNEES), key=_first)
    return best[2], best[0]


def _first(tried: tuple[float, float, StepLaw]) -> float:
    return tried[0]


def total_s(law: StepLaw | None, windows: Iterable[WorkWindow]) -> float:
    """The seconds of all windows, as measured or by a law."""
    return sum(window.seconds if law is None else expected_s(law, window) for window in windows)


def expected_s(law: StepLaw, window: WorkWindow) -> float:
    """The seconds that the law gives for the work of a window."""
    return 1e-6 * (
        law.step_us * window.steps
        + law.token_us * window.excess(law.knee, law.launch_tokens)
        + law.sequence_us * window.sequences
        + law.kv_read_us * window.kv_read
        + law.attention_us * window.attention
    )
