"""Whether a load is of two kinds that take turns, such as chats by day and long batches by night. Pure.

The kinds are told apart by one length, that of prompts or of answers, as the mean of each quarter of an hour:
the lengths of two kinds leave a gap between them, which those of one kind that drifts do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress, groupby, pairwise
from math import exp, log
from statistics import fmean
from typing import Literal

from flettner.primitives.quantiles import quantile

ROW_S = 900  # a quarter of an hour: as long as a recorded trace
LEAST_SPAN_S = 2 * 86_400  # what recurs has been seen on two days
LEAST_SHARE = 0.1  # of the rows, that the rarer kind has
LEAST_TIMES = 2.0  # the longer length is so many times the shorter one
LEAST_GAP = 1.5  # between the lengths that 90 % of the rows of either kind keep to
LASTING = 2  # rows in a row: a kind lasts for half an hour
MOST_BRIEF = 0.1  # of the rows, that may belong to shorter turns
LEAST_TURNS = 2  # of each kind

Metric = Literal["prompt_tokens", "answer_tokens"]
METRICS: Sequence[Metric] = ("prompt_tokens", "answer_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """A quarter of an hour. Lengths are means, of prompts without the tokens of the prefix cache."""

    at: int  # Unix time of its end, s
    requests: int
    prompt_tokens: float
    answer_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoMixes:
    """Two kinds of load. One is `above` once the metric is above `high`, until it is below `low`."""

    metric: Metric
    low: float
    high: float
    below_tokens: float  # of the metric, the middle of each kind
    above_tokens: float
    above_share: float  # of the requests
    above_hours: tuple[int, ...]  # of the day, UTC, in most of whose quarters the load was above
    days: float  # that the rows are of
    changes_a_day: float = 0.0  # from one kind to the other

    def is_above(self, tokens: float, *, before: bool) -> bool:
        """`before`: whether it was above before this."""
        return tokens >= self.low if before else tokens > self.high


def find_mixes(rows: Sequence[LoadRow]) -> TwoMixes | None:
    """The two kinds that the rows, in order of time, show; None where they show one, or too little.

    Of two lengths that differ, the one with the wider gap.
    """
    if not rows or rows[-1].at - rows[0].at < LEAST_SPAN_S:
        return None
    splits = [split for metric in METRICS if (split := _split(rows, metric)) is not None]
    return max(splits, key=lambda mixes: mixes.high / mixes.low, default=None)


def _split(rows: Sequence[LoadRow], metric: Metric) -> TwoMixes | None:
    logs = sorted(log(max(1.0, getattr(row, metric))) for row in rows)
    place = _best_split(logs)
    if place is None:
        return None
    lower, upper = logs[:place], logs[place:]
    last, first = quantile(lower, 0.9), quantile(upper, 0.1)
    if fmean(upper) - fmean(lower) < log(LEAST_TIMES) or first - last < log(LEAST_GAP):
        return None
    low, high = exp(last + (first - last) / 3), exp(last + 2 * (first - last) / 3)
    middle = exp((last + first) / 2)
    is_above = [getattr(row, metric) > middle for row in rows]
    if not _take_turns(rows, is_above):
        return None
    above = list(compress(rows, is_above))
    return TwoMixes(
        metric=metric,
        low=low,
        high=high,
        below_tokens=exp(fmean(lower)),
        above_tokens=exp(fmean(upper)),
        above_share=sum(row.requests for row in above) / max(1, sum(row.requests for row in rows)),
        above_hours=_most_hours(rows, above),
        days=(rows[-1].at - rows[0].at) / 86_400,
        changes_a_day=sum(a != b for a, b in pairwise(is_above)) / ((rows[-1].at - rows[0].at) / 86_400),
    )


def _best_split(logs: Sequence[float]) -> int | None:
    """Where two groups of sorted values differ most for their sizes (Otsu 1979); None for too few."""
    count = len(logs)
    least = max(LASTING * LEAST_TURNS, round(LEAST_SHARE * count))
    if count < 2 * least:
        return None
    total, left, best = sum(logs), sum(logs[: least - 1]), (0.0, 0)
    for place in range(least, count - least + 1):
        left += logs[place - 1]
        apart = (total - left) / (count - place) - left / place
        best = max(best, (place * (count - place) * apart**2, place))
    return best[1] or None


def _take_turns(rows: Sequence[LoadRow], is_above: Sequence[bool]) -> bool:
    """Whether both kinds come again and last; a pause of the traffic ends no turn."""
    turns = [(above, len(list(group))) for above, group in groupby(is_above)]
    lasting = [above for above, length in turns if length >= LASTING]
    brief = sum(length for _, length in turns if length < LASTING)
    return all(lasting.count(kind) >= LEAST_TURNS for kind in (False, True)) and brief <= MOST_BRIEF * len(
        rows
    )


def _most_hours(rows: Sequence[LoadRow], above: Sequence[LoadRow]) -> tuple[int, ...]:
    seen, longer = [_hour(row) for row in rows], [_hour(row) for row in above]
    return tuple(hour for hour in range(24) if 2 * longer.count(hour) > seen.count(hour))


def _hour(row: LoadRow) -> int:
    return datetime.fromtimestamp(row.at - ROW_S // 2, UTC).hour
