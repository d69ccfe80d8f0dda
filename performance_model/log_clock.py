"""What steps take beside the elapsed time that vLLM logs, by the clock of the log.

Between two steps that both decode the engine never idled, so the clock advanced by their times. It counts
whole seconds: the time of the first step after a tick is known to a step, that of any other to a second.
The error of a span has the mean 0 either way, so spans tell together what one does not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from flettner.performance_model.fit import expected_s
from flettner.performance_model.iteration_log import StepRecord
from flettner.performance_model.least_squares import solve_non_negative
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.work_windows import WorkWindow

LEAST_STEPS = 30  # of a stretch, and from tick to tick: a tick is known to a step, so to 3 %
LEAST_S = 10.0
"""By the clock, of all spans. With 10 s in spans from tick to tick the sum is known to some percent; what
is left out is at most some tens of percent of it on a GPU, so the law to one percent."""
LEAST_F = 20.0
"""Of the F test for the costs of a token and a sequence. By chance 10 is passed once in 10,000 logs of normal
errors; these are not normal."""
_UNIFORM = sqrt(1 / 12)  # standard deviation of a place between two ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class BusySpan:
    """Steps in a row without a pause. `missing_s`: the clock's time less their elapsed times."""

    wall_s: float
    missing_s: float
    error_s: float  # standard deviation of both
    steps: int
    tokens: int
    sequences: int


def busy_spans(records: Sequence[StepRecord]) -> Iterator[BusySpan]:
    """Spans from tick to tick, and what lies before the first and after the last one of a busy stretch.

    All of a stretch counts: to leave out its short ends would keep those that look short by the clock.
    """
    for stretch in _busy_stretches(records):
        begin = 0
        for end in range(1, len(stretch)):
            is_next = _is_tick(stretch, end) and (begin == 0 or end - begin >= LEAST_STEPS)
            if end == len(stretch) - 1 or is_next:
                if (span := _span(stretch, begin, end)) is not None:
                    yield span
                begin = end


def unlogged(spans: Iterable[BusySpan]) -> StepLaw:
    """The law of the time that is left out, zero if the log cannot tell.

    The same for each step, unless the spans show that it grows with tokens and sequences: on traffic that
    stays alike a step, its tokens and its sequences look the same, and a wrong choice is off for other sizes.
    """
    kept = list(spans)
    if sum(one.wall_s for one in kept) < LEAST_S:
        return StepLaw(step_us=0.0, token_us=0.0)
    missing_us = [1e6 * one.missing_s / one.error_s for one in kept]
    rows = [[value / one.error_s for value in (one.steps, one.tokens, one.sequences)] for one in kept]
    (each_us,), left_of_one = solve_non_negative([row[:1] for row in rows], missing_us)
    (step_us, token_us, sequence_us), left = solve_non_negative(rows, missing_us)
    if (left_of_one - left) * (len(kept) - 3) <= 2 * LEAST_F * left:  # 3 columns, 2 more than of one
        return StepLaw(step_us=each_us, token_us=0.0)
    return StepLaw(step_us=step_us, token_us=token_us, sequence_us=sequence_us)


def add_unlogged(windows: Iterable[WorkWindow], law: StepLaw) -> list[WorkWindow]:
    """The windows with the whole time of their steps."""
    return [replace(one, seconds=one.seconds + expected_s(law, one)) for one in windows]


def _span(stretch: Sequence[StepRecord], begin: int, end: int) -> BusySpan | None:
    """The steps after `begin` up to `end`; None if the log has no clock, or it was set back."""
    first, last, steps = stretch[begin].logged_s, stretch[end].logged_s, stretch[begin + 1 : end + 1]
    if first is None or last is None or last < first:
        return None
    elapsed_s = sum(one.seconds for one in steps)
    wall_s = float(last - first)
    step_s = max(wall_s, elapsed_s) / len(steps)
    ends_s = [step_s if _is_tick(stretch, place) else 1.0 for place in (begin, end)]
    return BusySpan(
        wall_s=wall_s,
        missing_s=wall_s - elapsed_s,
        error_s=_UNIFORM * sqrt(sum(one**2 for one in ends_s)),
        steps=len(steps),
        tokens=sum(one.tokens for one in steps),
        sequences=sum(one.sequences for one in steps),
    )


def _is_tick(stretch: Sequence[StepRecord], place: int) -> bool:
    return place > 0 and stretch[place].logged_s != stretch[place - 1].logged_s


def _busy_stretches(records: Sequence[StepRecord]) -> Iterator[Sequence[StepRecord]]:
    begin = 0
    for end in range(1, len(records) + 1):
        is_over = end == len(records) or not records[end].decodes
        if is_over or records[end].index != records[end - 1].index + 1:
            if end - begin >= LEAST_STEPS:
                yield records[begin:end]
            begin = end
