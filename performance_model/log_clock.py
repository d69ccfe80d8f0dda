"""What steps take beside the elapsed time that vLLM logs, by the clock of the log.

Between two steps that both decode the engine never idled, so the clock advanced by their times. It counts
whole seconds: the time of the first step after a tick is known to a step, that of any other to a second.
The error of a span has the mean 0 either way, so spans tell together what one does not.

With asynchronous scheduling (vLLM's default on GPUs since 0.14) the elapsed time of a step is what is left
to wait of an earlier one: on an H100 half of the time, and 0.03 ms for most steps with a prompt and some of
each size. Such times tell nothing of a step, only the clock does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import sqrt

from flettner.performance_model.fit import expected_s
from flettner.performance_model.iteration_log import StepRecord
from flettner.performance_model.least_squares import solve_non_negative
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.work_windows import WorkWindow, sum_steps

LEAST_STEPS = 30  # of a stretch, and from tick to tick: a tick is known to a step, so to 3 %
LEAST_S = 10.0
"""By the clock, of all spans. With 10 s in spans from tick to tick the sum is known to some percent; what
is left out is at most some tens of percent of it on a GPU, so the law to one percent."""
LEAST_F = 20.0
"""Of the F test for the costs of a token and a sequence. By chance 10 is passed once in 10,000 logs of normal
errors; these are not normal."""
HIDDEN = 0.2
"""Share of the clock's time from which on elapsed times are not used. Scheduling that waits for each step
leaves out its own time, 5 to 15 % of a step on a GPU."""
MOST_ERROR = 0.03  # relative, of the time of a span between two ticks
LEAST_EXACT = 3  # spans that are known so well: with fewer, all of the log counts as one
MOST_OF_ALL = 0.1  # relative error of that one
_UNIFORM = sqrt(1 / 12)  # standard deviation of a place between two ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class BusySpan:
    """Steps in a row without a pause; `work` has their elapsed times."""

    wall_s: float
    error_s: float  # standard deviation of it
    work: WorkWindow

    @property
    def missing_s(self) -> float:
        """The clock's time less the elapsed times."""
        return self.wall_s - self.work.seconds


def busy_spans(records: Sequence[StepRecord], kv_tokens: int) -> Iterator[BusySpan]:
    """Spans from tick to tick, and what lies before the first and after the last one of a busy stretch.

    All of a stretch counts: to leave out its short ends would keep those that look short by the clock.
    `kv_tokens`: the capacity of the KV cache.
    """
    for stretch in _busy_stretches(records):
        begin = 0
        for end in range(1, len(stretch)):
            is_next = _is_tick(stretch, end) and (begin == 0 or end - begin >= LEAST_STEPS)
            if end == len(stretch) - 1 or is_next:
                if (times := _times(stretch, begin, end)) is not None:
                    work = sum_steps(stretch[begin + 1 : end + 1], kv_tokens)
                    yield BusySpan(wall_s=times[0], error_s=times[1], work=work)
                begin = end


def unlogged(spans: Iterable[BusySpan]) -> StepLaw:
    """The law of the time that is left out, zero if the log cannot tell.

    The same for each step, unless the spans show that it grows with tokens and sequences: on traffic that
    stays alike a step, its tokens and its sequences look the same, and a wrong choice is off for other sizes.
    """
    intervals = list(spans)
    if sum(span.wall_s for span in intervals) < LEAST_S:
        return StepLaw(step_us=0.0, token_us=0.0)
    missing_us = [1e6 * span.missing_s / span.error_s for span in intervals]
    rows = [
        [value / span.error_s for value in (span.work.steps, span.work.excess(0.0), span.work.sequences)]
        for span in intervals
    ]
    (each_us,), left_of_one = solve_non_negative([row[:1] for row in rows], missing_us)
    (step_us, token_us, sequence_us), left = solve_non_negative(rows, missing_us)
    if (left_of_one - left) * (len(intervals) - 3) <= 2 * LEAST_F * left:  # 3 columns, 2 more than of one
        return StepLaw(step_us=each_us, token_us=0.0)
    return StepLaw(step_us=step_us, token_us=token_us, sequence_us=sequence_us)


def clocked_windows(spans: Sequence[BusySpan], *, plans_ahead: bool) -> list[WorkWindow] | None:
    """Spans with the clock's time; one of all together where few are exact, none where not even that one is.

    None where the elapsed times tell more. `plans_ahead`: scheduling is known to be asynchronous, which
    decides where the clock does not tell.
    """
    exact = [span for span in spans if span.error_s <= MOST_ERROR * span.wall_s]
    if not _hides_much(exact or spans, plans_ahead=plans_ahead):
        return None
    if len(exact) >= LEAST_EXACT:
        return [replace(span.work, seconds=span.wall_s) for span in exact]
    wall_s = sum(span.wall_s for span in spans)
    is_known = wall_s > 0 and _error_of_sum(spans) <= MOST_OF_ALL * wall_s
    return [replace(_join(span.work for span in spans), seconds=wall_s)] if is_known else []


def _hides_much(spans: Sequence[BusySpan], *, plans_ahead: bool) -> bool:
    """Whether the elapsed times leave out much of what the clock shows."""
    wall_s = sum(span.wall_s for span in spans)
    if wall_s <= 0 or _error_of_sum(spans) > HIDDEN / 2 * wall_s:
        return plans_ahead
    return sum(span.missing_s for span in spans) > HIDDEN * wall_s


def _error_of_sum(spans: Iterable[BusySpan]) -> float:
    """Seconds: standard deviation of the time of all spans together."""
    return sqrt(sum(span.error_s**2 for span in spans))


def _join(windows: Iterable[WorkWindow]) -> WorkWindow:
    """The work of all together."""
    several = list(windows)
    sizes: dict[float, float] = {}
    for tokens, count in chain.from_iterable(window.sizes for window in several):
        sizes[tokens] = sizes.get(tokens, 0.0) + count
    return WorkWindow(
        seconds=sum(window.seconds for window in several),
        steps=sum(window.steps for window in several),
        sizes=tuple(sizes.items()),
        sequences=sum(window.sequences for window in several),
        kv_read=sum(window.kv_read for window in several),
        attention=sum(window.attention for window in several),
    )


def add_unlogged(windows: Iterable[WorkWindow], law: StepLaw) -> list[WorkWindow]:
    """The windows with the whole time of their steps."""
    return [replace(window, seconds=window.seconds + expected_s(law, window)) for window in windows]


def _times(stretch: Sequence[StepRecord], begin: int, end: int) -> tuple[float, float] | None:
    """The clock's time of the steps after `begin` up to `end`, and its error; None if the log has no clock,
    or it was set back."""
    first, last, steps = stretch[begin].logged_s, stretch[end].logged_s, end - begin
    if first is None or last is None or last < first:
        return None
    wall_s = float(last - first)
    step_s = max(wall_s, sum(record.seconds for record in stretch[begin + 1 : end + 1])) / steps
    ends_s = [step_s if _is_tick(stretch, place) else 1.0 for place in (begin, end)]
    return wall_s, _UNIFORM * sqrt(sum(end_s**2 for end_s in ends_s))


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
