"""Learns from a recording: trace, law of step time, and whether the law is believed. Runs in the worker."""

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isnan
from statistics import fmean

from flettner.agent.prediction.learned import FittedLaw, LawSource, LearnedModel, TokenCounts
from flettner.agent.prediction.recording import Minute, Recording, sum_minutes
from flettner.agent.prediction.saved_model import PastSteps, SavedModel, encode, join_load, law_key
from flettner.agent.prediction.step_rows import thin
from flettner.agent.prediction.trace_builder import RecordedLoad, build_load
from flettner.performance_model.acceptance import (
    ITL_ERROR,
    TAIL_S,
    TTFT_ERROR,
    TTFT_QUANTILE,
    WINDOW_S,
    WINDOWS,
    Acceptance,
    MeasuredWindow,
    ServedRequest,
    check_window,
    measure_records,
)
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of, one_engine
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.hardware_prior import WindowKind, fit_with_prior, rows_of_log
from flettner.performance_model.trace import mean_context
from flettner.performance_model.work_windows import WorkWindow
from flettner.primitives.quantiles import histogram_quantile
from flettner.vllm_facts.serve_config import ServeConfig

LEAST_LOGGED = 60  # windows of logged steps, one minute's; with fewer the histograms tell more
LEAST_REQUESTS = 10  # in a window that a prediction is compared with
MOST_ROWS = 400  # of a fit; with DRAWS refits 1 to 2 s of CPU
MOST_SPANS = 900  # of the log's clock, the latest: one a second for as long as a trace
DRAWS = 8
SPANNED = 3  # minutes that a window and its tail may lie in
LAWS = 6  # fitted ones that are kept: one from before the last window is among them
LOG_FLAG = "enable_logging_iteration_details"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """`laws`: those fitted before, oldest first. `acceptance`: of their predictions. `dropped`: why the laws
    before these were dropped; empty: none was. `past`: from before the recording; None: nothing. `last_step`:
    number of the latest read step of the iteration log.
    """

    target: str
    server: str
    config: ServeConfig
    servers: int
    kv_tokens: int | None
    at: datetime
    recording: Recording
    laws: tuple[FittedLaw, ...] = ()
    acceptance: Acceptance = field(default_factory=Acceptance)
    dropped: str = ""
    past: SavedModel | None = None
    last_step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """`law`: fitted in this lesson; None: it could not be. `saved`: for the next start of the daemon."""

    model: LearnedModel
    law: FittedLaw | None
    acceptance: Acceptance
    saved: bytes


def learn(lesson: Lesson) -> Learned:
    load = build_load(lesson.recording, servers=lesson.servers)
    outside_s = time_outside(lesson.recording, load.counts_from)
    acceptance, fitted, why = lesson.acceptance, None, ""
    try:
        if (errors := _check(lesson, load, outside_s)) is not None:
            acceptance = acceptance.add(errors)
        _limits(lesson)  # a setting that is not modelled needs no law
        context = mean_context(load.trace)
        fitted = _fit(lesson, context, draws=DRAWS if acceptance.is_accepted else 0)
    except PredictionInputError as error:
        why = str(error)
    laws = (*lesson.laws, *((fitted,) if fitted else ()))[-LAWS:]
    newest = laws[-1] if laws else None
    in_force = newest is not None and acceptance.is_accepted
    saved = SavedModel(
        at=lesson.at,
        target=lesson.target,
        key=law_key(lesson.config),
        load=join_load(lesson.past.load if lesson.past else None, load.trace, load.end_s, lesson.servers),
        counts_from=load.counts_from,
        kv_tokens=lesson.kv_tokens,
        outside_s=outside_s,
        steps=_steps(lesson),
        laws=laws,
        acceptance=acceptance,
        why_no_law="" if in_force else _explain(lesson, newest, acceptance, why),
    )
    model = saved.model(lesson.server, lesson.config)
    return Learned(model=model, law=fitted, acceptance=acceptance, saved=encode(saved))


def _fit(lesson: Lesson, context: float, draws: int) -> FittedLaw:
    windows, kind = choose_rows(lesson.config, _steps(lesson), context)
    source: LawSource = "histograms" if kind == "histograms" else "iteration log"
    rows = thin(windows, MOST_ROWS)
    if not rows:
        raise PredictionInputError("no second with running requests was seen yet")
    law = fit_with_prior(lesson.config, rows, kind=kind, draws=draws, source=f"{source}, {len(rows)} windows")
    return FittedLaw(law=law, source=source, rows=len(rows), until_s=lesson.recording.minutes[-1].end_s)


def _steps(lesson: Lesson) -> PastSteps:
    """All that a law is fitted to."""
    minutes, past = lesson.recording.minutes, lesson.past.steps if lesson.past else PastSteps()
    logged = [*past.logged, *_unpickle(rows for minute in minutes for rows in minute.logged_rows)]
    counted = [*past.counted, *_unpickle(minute.histogram_rows for minute in minutes)]
    return PastSteps(
        logged=tuple(thin(logged, MOST_ROWS)),
        counted=tuple(thin(counted, MOST_ROWS)),
        busy=(*past.busy, *(span for minute in minutes for span in minute.busy))[-MOST_SPANS:],
        last=lesson.last_step,
    )


def choose_rows(
    config: ServeConfig, steps: PastSteps, context: float
) -> tuple[Sequence[WorkWindow], WindowKind]:
    """Those of the iteration log where they tell enough. `context`: as in `rows_of_log`."""
    if len(steps.logged) < LEAST_LOGGED:
        return steps.counted, "histograms"
    rows, kind = rows_of_log(config, steps.logged, steps.busy, context, on_gpu=config.card is not None)
    return (rows, kind) if rows else (steps.counted, "histograms")


def _check(lesson: Lesson, load: RecordedLoad, outside_s: float) -> tuple[float, float] | None:
    """Errors of the last window, predicted by the newest law that was fitted before it."""
    minutes = lesson.recording.minutes
    if len(minutes) < SPANNED or not all(minute.steady for minute in minutes[-SPANNED:]):
        return None
    measured = _measure(lesson.recording, load, outside_s)
    if measured is None or measured.begin_s < WINDOW_S:  # the engine's state before the trace is not known
        return None
    before = [law for law in lesson.laws if law.until_s <= load.begin_s + measured.begin_s]
    if not before:
        return None
    return check_window(load.trace, before[-1].law.law, _limits(lesson), measured)


def _limits(lesson: Lesson) -> EngineLimits:
    if lesson.kv_tokens is None:
        raise PredictionInputError("vLLM's metrics do not tell the size of the KV cache")
    return limits_of(one_engine(lesson.config), kv_tokens=lesson.kv_tokens)


def _measure(recording: Recording, load: RecordedLoad, outside_s: float) -> MeasuredWindow | None:
    """The last window of the load that requests followed; None if it has too few requests."""
    if load.counts_from == "histograms":
        return _measure_histograms(recording.minutes[-1], load.begin_s, outside_s)
    end_s, requests = load.end_s - TAIL_S, recording.requests
    since_s, until_s = (load.begin_s + at_s for at_s in (end_s - WINDOW_S, end_s))
    served = [
        ServedRequest(ttft_s=ttft_s, itl_s=0.0 if isnan(gap_s) else gap_s)
        for begun_s, ttft_s, gap_s in zip(requests.begun_s, requests.ttft_s, requests.gap_s, strict=True)
        if since_s <= begun_s < until_s and not isnan(ttft_s)
    ]
    if len(served) < LEAST_REQUESTS or not any(request.itl_s for request in served):
        return None
    return measure_records(served, end_s - WINDOW_S, end_s, outside_s=outside_s)


def _measure_histograms(minute: Minute, begin_s: float, outside_s: float) -> MeasuredWindow | None:
    ttft, gaps = minute.sums.ttft, minute.sums.gaps or minute.sums.itl
    if ttft is None or gaps is None or ttft.total < LEAST_REQUESTS:
        return None
    return MeasuredWindow(
        begin_s=minute.begin_s - begin_s,
        end_s=minute.end_s - begin_s,
        itl_s=gaps.sum / gaps.total,
        ttft_s=histogram_quantile(ttft.edges, ttft.counts, TTFT_QUANTILE),
        ttft_edges=ttft.edges,
        by_arrival=False,
        outside_s=outside_s,
    )


def time_outside(recording: Recording, counts_from: TokenCounts) -> float:
    """Mean time of a request outside of the engine's queue and its work.

    By the proxy's TTFT, which is measured as clients do; else by vLLM's E2E, which leaves out what passes
    before its API server. Both are of requests that ended, as queue, prefill and inference are: vLLM counts a
    TTFT when it is over, and while a queue grows those requests waited for longer.
    """
    sums, requests = sum_minutes(recording.minutes), recording.requests
    since_s = recording.minutes[0].begin_s
    waits_s = [
        ttft_s
        for ended_s, ttft_s in zip(requests.ended_s, requests.ttft_s, strict=True)
        if counts_from == "records" and ended_s >= since_s and not isnan(ttft_s)
    ]
    inside = sums.prefill if waits_s else sums.inference
    if sums.queue is None or inside is None or not (waits_s or sums.e2e):
        return 0.0
    whole_s = fmean(waits_s) if waits_s or sums.e2e is None else sums.e2e.sum / sums.e2e.total
    return max(0.0, whole_s - sums.queue.sum / sums.queue.total - inside.sum / inside.total)


def _explain(lesson: Lesson, newest: FittedLaw | None, acceptance: Acceptance, why: str) -> str:
    dropped = f"; {lesson.dropped}" if lesson.dropped else ""
    if newest is None or why:
        return f"{why}{dropped}"
    if len(acceptance.itl) < WINDOWS:
        return (
            f"{len(acceptance.itl)} of {WINDOWS} windows of {WINDOW_S:g} s have been predicted and compared"
            f"{dropped}"
        )
    errors = (
        f"the last {WINDOWS} predictions were off by {acceptance.itl_error:.0%} in the time between tokens "
        f"(limit {ITL_ERROR:.0%}) and {acceptance.ttft_error:.0%} in the TTFT (limit {TTFT_ERROR:.0%})"
    )
    if lesson.config.setting.get(LOG_FLAG) is not True:
        return f"{errors}; --{LOG_FLAG.replace('_', '-')} makes the law more exact"
    if newest.source == "histograms":
        return (
            f"{errors}; the iteration log, which makes it more exact, was not read: too few lines, or no log"
        )
    return errors


def _unpickle(parts: Iterable[bytes]) -> list[WorkWindow]:
    return [row for part in parts for row in pickle.loads(part)]  # noqa: S301 - of the daemon, our parent
