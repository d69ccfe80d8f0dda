"""The judge's sentences, and the account that the API and the audit give of its evidence."""

from dataclasses import dataclass
from math import exp, sqrt

from agent.trial import Stream

BAD_ONES = {
    "errors": "failed, cut or stalled",
    "gave_up": "abandoned by the client",
    "refused": "refused (status 400 to 499)",
    "ttft": "with a first token after {edge}",
    "itl": "with more than {edge} between tokens",
    "e2e": "longer than {edge}",
}
Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One stream in numbers. Intervals: Wilson 95 %, of this step's counts, to look at, not to judge by.

    `worse`, `not_worse`: e-values; a verdict needs 100 (of the mean over streams) and 20.
    `chance`: at most so probable would evidence like this be, if green were not worse by the margin.
    """

    stream: str
    edge_s: float | None
    green_bad: int
    green_of: int
    green_interval: tuple[float, float] | None
    blue_bad: int
    blue_of: int
    blue_interval: tuple[float, float] | None
    margin: float
    worse: float
    not_worse: float
    chance: float
    says: str


def account(stream: Stream, log_worse: float) -> Account:
    blue_of, blue_bad, of, bad = stream.counted
    return Account(
        stream=stream.name,
        edge_s=stream.edge_s,
        green_bad=bad,
        green_of=of,
        green_interval=interval(bad, of),
        blue_bad=blue_bad,
        blue_of=blue_of,
        blue_interval=interval(blue_bad, blue_of),
        margin=stream.margin,
        worse=_rounded(log_worse),
        not_worse=_rounded(stream.requests.most_good),
        chance=min(1.0, exp(-min(log_worse, 700.0))),
        says=counted(stream),
    )


def _rounded(log_e: float) -> float:
    return float(f"{exp(min(log_e, 700.0)):.3g}")


def interval(bad: int, of: int) -> tuple[float, float] | None:
    """Wilson (1927): 95 % of such intervals hold the true share; None without requests."""
    if not of:
        return None
    share, square = bad / of, Z95**2 / of
    middle = (share + square / 2) / (1 + square)
    half = Z95 / (1 + square) * sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def counted(stream: Stream) -> str:
    """As in "green: 37 of 412 requests with a first token after 500 ms, blue: 9 of 1,230"."""
    blue_of, blue_bad, of, bad = stream.counted
    what = BAD_ONES[stream.name].format(edge=duration(stream.edge_s or 0.0))
    blue = f"blue: {blue_bad:,} of {blue_of:,}" if blue_of else f"blue's record: {stream.usual:.1%}"
    return f"green: {bad:,} of {of:,} requests {what}, {blue}"


def chance(log_worse: float, margin: float) -> str:
    """How surprising the evidence is, in a sentence for a person."""
    odds = exp(min(log_worse, 30.0))
    return f"chance of this if green were no worse than {points(margin)}: under 1 in {int(odds):,}"


def points(share: float) -> str:
    value = f"{100 * share:.2g}"
    return f"{value} point" if value == "1" else f"{value} points"


def duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
