"""How far a prediction is from what the law of step time was fitted to."""

from dataclasses import dataclass

FAR = 4.0
"""Times the largest fitted step: errors are measured up to two octaves away (bench.prediction)."""
FAR_RATE = 2.0
"""Times the recorded rate, either way: beyond, the recorded mix of requests tells little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStep:
    """The most tokens, and the most sequences, of one engine step."""

    tokens: float
    sequences: float


def describe_extrapolation(fitted: LargestStep | None, asked: LargestStep, rate: float = 1.0) -> str:
    """What is far outside, as a clause; empty if nothing is. `rate`: times the recorded one.

    A law that was not fitted (`fitted` is None) has errors of its own everywhere.
    """
    reasons = []
    if fitted is not None:
        for name, wanted, largest in (
            ("tokens", asked.tokens, fitted.tokens),
            ("sequences", asked.sequences, fitted.sequences),
        ):
            if wanted > FAR * largest:
                reasons.append(
                    f"steps of up to {wanted:,.0f} {name} are predicted from steps of at most {largest:,.0f}"
                )
    if not 1 / FAR_RATE <= rate <= FAR_RATE:
        reasons.append(f"the rate is {rate:g} times the recorded one")
    return "; ".join(reasons)
