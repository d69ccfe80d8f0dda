"""The sentences in which the judge reports its evidence."""

from math import exp, sqrt

from flettner.agent.domain.trial import EvidenceStream

BAD_ONES = {
    "errors": "failed or cut",
    "stalled": "stalled before the first token",
    "gave_up": "abandoned by the client",
    "refused": "refused (status 400 to 499)",
    "ttft": "with a first token after {edge}",
    "itl": "with more than {edge} between tokens",
    "e2e": "longer than {edge}",
}
Z95 = 1.96


def wilson_interval(bad: int, of: int) -> tuple[float, float] | None:
    """Wilson (1927): 95 % of such intervals hold the true share; None without requests."""
    if not of:
        return None
    share, square = bad / of, Z95**2 / of
    middle = (share + square / 2) / (1 + square)
    half = Z95 / (1 + square) * sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def describe_counts(stream: EvidenceStream) -> str:
    """As in "green: 37 of 412 requests with a first token after 500 ms, blue: 9 of 1,230"."""
    blue_of, blue_bad, of, bad = stream.counted
    what = BAD_ONES[stream.name].format(edge=describe_duration(stream.edge_s or 0.0))
    blue = f"blue: {blue_bad:,} of {blue_of:,}" if blue_of else f"blue's baseline: {stream.usual:.1%}"
    return f"green: {bad:,} of {of:,} requests {what}, {blue}"


def describe_chance(log_worse: float, margin: float) -> str:
    """The probability of the evidence, in a sentence."""
    odds = exp(min(log_worse, 30.0))
    return (
        f"chance of this if green were worse by at most {describe_points(margin)}: under 1 in {int(odds):,}"
    )


def describe_points(share: float) -> str:
    value = f"{100 * share:.2g}"
    return f"{value} point" if value == "1" else f"{value} points"


def describe_duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
