"""The time of one engine step, and how certain it is.

    seconds = a + b * max(0, tokens - knee) + c * sequences + d * kv_read + e * attention

Below the knee a step costs the reading of the weights, whatever its size; above it each token costs
compute. A law without the knee charges both and gets the sign of max_num_batched_tokens wrong.

A step of more tokens than the largest CUDA graph is launched kernel by kernel: it takes as long as the host
needs for that, if its tokens take less. `launch_tokens` is how many tokens would take as long.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, hypot, inf, isfinite, sqrt
from random import Random
from statistics import fmean, pvariance
from typing import Any

from flettner.performance_model.band import draw_evenly, draws_quantile
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import LargestStep

FORMAT, VERSION = "flettner_step_law", 1
GRAPH_TOKENS = 512
"""The largest CUDA graph of vLLM: cudagraph_capture_sizes end at 512, or at twice max_num_seqs."""
FORM_ERROR = 0.025
"""Relative, of the time between tokens at settings of an H100 that the law was fitted to: it leaves out that
CUDA graphs are of a few sizes, and more."""
COEFFICIENTS = ("step_us", "token_us", "sequence_us", "kv_read_us", "attention_us")


_FIELDS = ("knee", "launch_tokens", *COEFFICIENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """Coefficients in microseconds."""

    step_us: float  # a: of each step
    knee: float = 0.0  # tokens of a step that cost nothing beside the reading of the weights
    launch_tokens: float = 0.0  # the least that a step of more than GRAPH_TOKENS counts as
    token_us: float  # b: of each token above the knee
    sequence_us: float = 0.0  # c: of each sequence
    kv_read_us: float = 0.0  # d: of each token of KV cache that decoding sequences read
    attention_us: float = 0.0  # e: of each prompt token and token of context that it attends to

    def seconds(self, tokens: int, sequences: int, kv_read: int, attention: float = 0.0) -> float:
        counted = tokens if tokens <= GRAPH_TOKENS else max(tokens, self.launch_tokens)
        return 1e-6 * (
            self.step_us
            + self.token_us * max(0.0, counted - self.knee)
            + self.sequence_us * sequences
            + self.kv_read_us * kv_read
            + self.attention_us * attention
        )

    def scaled(self, factor: float) -> "StepLaw":
        """On an engine that is slower by the factor."""
        return replace(self, **{name: getattr(self, name) * factor for name in COEFFICIENTS})


def with_launch(law: StepLaw, launch_us: float) -> StepLaw:
    """With steps of more than GRAPH_TOKENS that take so long at least."""
    tokens = law.knee + (launch_us - law.step_us) / law.token_us if law.token_us else 0.0
    return replace(law, launch_tokens=tokens if tokens > GRAPH_TOKENS else 0.0)


def counted_tokens(tokens: float, launch_tokens: float) -> float:
    """What a step of so many tokens counts as."""
    return max(tokens, launch_tokens) if tokens > GRAPH_TOKENS else tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainLaw:
    """A law and equally likely alternatives, which keep what coefficients have in common.

    `fitted_to`: the largest step that it was fitted to; None for a law that was not fitted. `wait_error`: how
    far a TTFT is off beyond the error of the steps, as the standard deviation of its logarithm.
    """

    law: StepLaw
    draws: tuple[StepLaw, ...] = ()
    source: str = ""
    fitted_to: LargestStep | None = None
    wait_error: float = 0.0

    def interval(self, name: str, share: float = 0.8) -> tuple[float, float]:
        """The middle `share` of a coefficient over the draws."""
        values = sorted(getattr(draw, name) for draw in (self.draws or (self.law,)))
        return draws_quantile(values, (1 - share) / 2), draws_quantile(values, (1 + share) / 2)


def widen(
    law: StepLaw, *, common: float, each: float, count: int, seed: int, source: str = ""
) -> UncertainLaw:
    """Draws with lognormal errors: `common` of all coefficients together, `each` of one alone (sigmas)."""
    random = Random(f"widen:{seed}")  # noqa: S311 - statistics, not cryptography
    draws = []
    for _ in range(count):
        scale = exp(random.gauss(0.0, common))
        factors = {name: scale * exp(random.gauss(0.0, each)) for name in COEFFICIENTS}
        draws.append(replace(law, **{name: getattr(law, name) * factors[name] for name in COEFFICIENTS}))
    return UncertainLaw(law=law, draws=tuple(draws), source=source)


def with_error(uncertain: UncertainLaw, itl: Sequence[float], ttft: Sequence[float] = ()) -> UncertainLaw:
    """With draws that are also off by a common factor, as large as the relative error of its predictions.

    `itl`, `ttft`: the errors of windows, with sign. A prediction is of a longer load than a window: what
    differs from window to window counts less. Refits of resampled steps show what chance does to the
    coefficients, not what the law leaves out: in windows of one setting that is much the same.
    """
    size, wait = hypot(FORM_ERROR, _error_of_mean(itl)) if itl else 0.0, _error_of_mean(ttft)
    uncertain = replace(uncertain, wait_error=sqrt(max(0.0, wait**2 - size**2)))
    if not itl:
        return uncertain
    random = Random("error")  # noqa: S311 - statistics, not cryptography
    errors = draw_evenly(len(uncertain.draws), random)
    draws = (draw.scaled(exp(size * error)) for draw, error in zip(uncertain.draws, errors, strict=True))
    return replace(uncertain, draws=tuple(draws))


def _error_of_mean(errors: Sequence[float]) -> float:
    """Root mean square of the mean error, bias and chance."""
    if not errors:
        return 0.0
    middle = fmean(errors)
    return sqrt(middle**2 + pvariance(errors) / len(errors))


def write_law(uncertain: UncertainLaw) -> str:
    """A law as JSON."""
    row = {
        FORMAT: VERSION,
        "source": uncertain.source,
        "law": _as_row(uncertain.law),
        "draws": [_as_row(draw) for draw in uncertain.draws],
        **({"wait_error": _shorten(uncertain.wait_error)} if uncertain.wait_error else {}),
        **({"fitted_to": asdict(uncertain.fitted_to)} if uncertain.fitted_to else {}),
    }
    return json.dumps(row, indent=1) + "\n"


def read_law(text: str, name: str = "law") -> UncertainLaw:
    """Raises PredictionInputError with the place of the fault."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PredictionInputError(f"{name}: not JSON: {error}") from error
    if not isinstance(row, dict) or row.get(FORMAT) != VERSION:
        raise PredictionInputError(f'{name}: not a law of step time: it must have "{FORMAT}": {VERSION}')
    draws = row.get("draws", [])
    if not isinstance(draws, list):
        raise PredictionInputError(f"{name}: draws: must be a list of laws")
    return UncertainLaw(
        law=_from_row(row.get("law"), f"{name}: law"),
        draws=tuple(_from_row(draw, f"{name}: draws[{index}]") for index, draw in enumerate(draws)),
        source=str(row.get("source", "")),
        fitted_to=_read_largest(row.get("fitted_to"), f"{name}: fitted_to"),
        wait_error=_read_wait_error(row.get("wait_error", 0.0), name),
    )


def _read_largest(row: object, where: str) -> LargestStep | None:
    if row is None:
        return None
    values = [row.get("tokens"), row.get("sequences")] if isinstance(row, dict) else []
    numbers = [
        number for number in values if isinstance(number, int | float) and isfinite(number) and number > 0
    ]
    if len(numbers) != 2:  # noqa: PLR2004 - both
        raise PredictionInputError(f"{where}: must have tokens and sequences, numbers above 0")
    return LargestStep(tokens=numbers[0], sequences=numbers[1])


def _read_wait_error(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise PredictionInputError(f"{name}: wait_error {value!r}: must be a number, at least 0")
    return float(value)


def _as_row(law: StepLaw) -> dict[str, float]:
    return {name: _shorten(getattr(law, name)) for name in _FIELDS}


def _shorten(value: float) -> float:
    return float(f"{value:.6g}")


def _from_row(row: object, where: str) -> StepLaw:
    if not isinstance(row, dict):
        raise PredictionInputError(f"{where}: must be an object with {', '.join(('knee', *COEFFICIENTS))}")
    fields: Mapping[str, Any] = row
    names: Sequence[str] = _FIELDS
    unknown = sorted(set(fields) - set(names))
    if unknown:
        raise PredictionInputError(f"{where}: unknown coefficient {unknown[0]}; known: {', '.join(names)}")
    for name in names:
        value = fields.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value < 0:
            raise PredictionInputError(f"{where}: {name} {value!r}: must be a number, at least 0")
    if not fields.get("step_us"):
        raise PredictionInputError(f"{where}: step_us must be above 0: a step takes time")
    return StepLaw(**{name: float(fields.get(name, 0.0)) for name in names})
