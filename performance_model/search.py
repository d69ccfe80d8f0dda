"""Searches the settings near the one in force for one that serves the recorded load better.

Candidates race: all of them on short windows of the load, the best few on the whole load. The windows are
the same for all, so requests, not luck, tell them apart. The gain of a finalist is judged by pairs: the
difference of goodput in each block of BLOCK_S seconds, and on the windows for each draw of the law. Finalists
are ranked by the lower end of their gain. Plateaus are the rule, so the winner is the setting with the fewest
changed flags among those that are as good as the best, and no change is proposed for a gain within max(2 %, 2
standard errors).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import sqrt
from statistics import pstdev

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of, veto, with_changes
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.outcome import Goals, attainment
from flettner.performance_model.replayed_scheduler import EngineRun, ReplayedScheduler
from flettner.performance_model.resample import window
from flettner.performance_model.step_law import StepLaw, UncertainLaw
from flettner.performance_model.trace import Trace, duration_s, mean_context
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Knob, Value

WINDOWS, WINDOW_SHARE = 3, 0.03  # of the load, for the first round: each candidate sees 9 %
LEAST_WINDOW_S = 20.0
FINALISTS = 6
LEAST_GAIN = 0.02  # of the requests: below, restarts cost more than they bring
ERRORS = 2.0  # standard errors that a gain must exceed
BLOCK_S = 30.0
MOST = 60
MOST_MOVED_KV = 0.25  # of the KV cache, as a side effect by the estimate, which is rough
LAWS = 8  # draws of the law that each finalist sees
LOW_QUANTILE = 1.28  # standard deviations from the middle of a normal distribution to its 10 % quantile

FIT_SHARES = (0.9, 0.75)  # of the KV cache that running requests fill on average: their lengths vary

Changes = Mapping[Knob, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setting near the one in force. What is None is known of finalists alone.

    Shares of the requests; `gain` is over the setting in force, and 90 % of the draws lie above `low`.
    """

    changes: Changes
    limits: EngineLimits
    screened: float  # attainment on the windows
    attainment: float | None = None  # over the whole load
    gain: float = 0.0
    noise: float = 1.0  # standard error of the gain
    likely: float = 0.0  # share of the draws of the law in which it is better

    @property
    def low(self) -> float:
        return self.gain - LOW_QUANTILE * self.noise


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """`gain` is that of `best` over the setting in force, in shares of the requests; `best` is None for no
    change."""

    base: float
    best: Candidate | None
    gain: float
    noise: float  # standard error of the gain
    likely: float  # share of the draws of the law in which `best` is better
    tried: int
    vetoed: Mapping[str, int]
    finalists: tuple[Candidate, ...]


def allow_all(_: Changes) -> str:
    """Refuse nothing."""
    return ""


def search(
    config: ServeConfig,
    trace: Trace,
    law: UncertainLaw,
    goals: Goals,
    *,
    kv_tokens: int | None = None,
    refuse: Callable[[Changes], str] = allow_all,
    also: Sequence[Changes] = (),
) -> SearchResult:
    """`refuse`: why a change must not be tried; empty if it may. `also`: changes that are suggested already;
    they are among the finalists, and of settings as good as each other one of them wins.

    Raises PredictionInputError if the setting in force cannot be predicted.
    """
    base = limits_of(config, kv_tokens=kv_tokens)
    base_run = ReplayedScheduler(trace, law.law, base).run()
    vetoed: dict[str, int] = {}
    wanted = (*also, *_caps_to_fit(trace, base, base_run), *neighbours(config, base))
    nearby = list(_admissible(config, base, wanted, refuse, vetoed))
    parts = _windows(trace)
    screened = sorted(
        (
            Candidate(
                changes=changes, limits=limits, screened=_mean_attainment(parts, law.law, limits, goals)
            )
            for changes, limits in nearby
        ),
        key=lambda candidate: (candidate.changes not in also, -candidate.screened, len(candidate.changes)),
    )
    own = attainment(base_run, goals)
    finalists = [
        _judge(candidate, trace, law.law, goals, base_run)
        for candidate in (screened[:FINALISTS] if own < 1 - LEAST_GAIN / 2 else ())
    ]
    better = [finalist for finalist in finalists if finalist.gain > LEAST_GAIN]
    laws = law.draws[:LAWS] if better else ()
    by_law = [_mean_attainment(parts, drawn, base, goals) for drawn in laws]
    doubted = [_doubt(finalist, parts, laws, goals, by_law) for finalist in better]
    finalists = sorted(
        (*doubted, *(finalist for finalist in finalists if finalist not in better)),
        key=lambda finalist: -finalist.low,
    )
    first = finalists[0] if finalists else None
    best = _simplest(finalists, also)
    shown = best or first
    return SearchResult(
        base=own,
        best=best,
        gain=shown.gain if shown else 0.0,
        noise=shown.noise if shown else 0.0,
        likely=best.likely if best else 0.0,
        tried=len(nearby),
        vetoed=vetoed,
        finalists=tuple(finalists),
    )


def _judge(candidate: Candidate, trace: Trace, law: StepLaw, goals: Goals, base_run: EngineRun) -> Candidate:
    """Add the gain over the whole load, with its error from the load."""
    gain, noise = paired_gain(base_run, ReplayedScheduler(trace, law, candidate.limits).run(), goals)
    return replace(
        candidate,
        attainment=attainment(base_run, goals) + gain,
        gain=gain,
        noise=noise,
        likely=float(gain > 0),
    )


def _doubt(
    candidate: Candidate,
    parts: Sequence[Trace],
    laws: Sequence[StepLaw],
    goals: Goals,
    base_by_law: Sequence[float],
) -> Candidate:
    """Add the error of the law, by the gain on the windows under each of its draws."""
    gains = [
        _mean_attainment(parts, drawn, candidate.limits, goals) - base
        for drawn, base in zip(laws, base_by_law, strict=True)
    ]
    if not gains:
        return candidate
    return replace(
        candidate,
        noise=sqrt(candidate.noise**2 + pstdev(gains) ** 2),
        likely=sum(gain > 0 for gain in gains) / len(gains),
    )


def neighbours(config: ServeConfig, base: EngineLimits) -> Iterator[Changes]:
    """Settings up to three octaves of batch size away, two up or five down of token budget, and one step of
    the other flags."""
    seqs = [_octave(base.max_num_seqs, step) for step in (0, -1, 1, -2, 2, -3, 3)]
    budgets = [_octave(base.max_num_batched_tokens, step) for step in (0, -1, 1, -2, 2, -3, -4, -5)]
    share = config.setting.get("gpu_memory_utilization")
    singles: Sequence[Changes] = (
        {"long_prefill_token_threshold": max(256, base.max_num_batched_tokens // 4)},
        {"watermark": 0.02},
        {"enable_prefix_caching": None},
        *(
            {"gpu_memory_utilization": value}
            for value in (0.92, 0.95)
            if share is None or value > float(share or 0)
        ),
    )
    pairs = [
        _changed(base, number, budget)
        for number, budget in sorted(product(seqs, budgets), key=lambda pair: _distance(base, *pair))
    ]
    yield from (pair for pair in pairs if pair)
    yield from (
        single
        for single in singles
        if any(config.setting.get(knob) != value for knob, value in single.items())
    )
    yield from ({**single, **pair} for single in singles[-2:] for pair in pairs[:9] if pair)


def _caps_to_fit(trace: Trace, base: EngineLimits, run: EngineRun) -> Iterator[Changes]:
    """Where requests are preempted, batches that the KV cache holds: octaves are too coarse for that.

    A running request holds its prompt and on average half of its output, for as long as it has output.
    """
    held = mean_context(trace)
    if not run.preemptions or not held:
        return
    for share in FIT_SHARES:
        seqs = max(1, int(share * base.kv_tokens / held))
        if seqs < base.sequences:
            yield {"max_num_seqs": seqs}


def paired_gain(base: EngineRun, other: EngineRun, goals: Goals) -> tuple[float, float]:
    """The difference of attainment of two runs of one load, and its standard error over blocks of BLOCK_S."""
    blocks: dict[int, list[int]] = {}
    for before, after in zip(base.requests, other.requests, strict=True):
        difference = goals.are_met_by(after) - goals.are_met_by(before)
        blocks.setdefault(int(before.arrival_s / BLOCK_S), []).append(difference)
    total = len(base.requests)
    gain = sum(map(sum, blocks.values())) / total
    if len(blocks) < 2:  # noqa: PLR2004 - one block has no spread
        return gain, 1.0
    spread = sum((sum(block) - gain * len(block)) ** 2 for block in blocks.values())
    return gain, sqrt(spread * len(blocks) / (len(blocks) - 1)) / total


def _admissible(
    config: ServeConfig,
    base: EngineLimits,
    wanted: Iterable[Changes],
    refuse: Callable[[Changes], str],
    vetoed: dict[str, int],
) -> Iterator[tuple[Changes, EngineLimits]]:
    count, tried = 0, []
    for changes in wanted:
        if count == MOST:
            return
        if changes in tried:
            continue
        tried.append(changes)
        why = refuse(changes)
        try:
            limits = base if why else moved_limits(config, base, changes)
            why = (
                why
                or veto(with_changes(config, changes), limits, config)
                or _side_effect(base, limits, changes)
            )
        except PredictionInputError as error:
            why, limits = str(error), base
        if why:
            vetoed[why] = vetoed.get(why, 0) + 1
            continue
        count += 1
        yield changes, limits


def _side_effect(base: EngineLimits, limits: EngineLimits, changes: Changes) -> str:
    """Why a change relies too much on an estimate of memory: a KV cache of another size would decide."""
    moved = limits.kv_tokens / base.kv_tokens - 1
    if "gpu_memory_utilization" in changes or abs(moved) <= MOST_MOVED_KV:
        return ""
    return f"the KV cache would change by an estimated {moved:+.0%}"


def moved_limits(config: ServeConfig, base: EngineLimits, changes: Changes) -> EngineLimits:
    """The limits after a change: the KV cache in force, moved by what the estimate says of the change.

    Raises PredictionInputError.
    """
    changed = with_changes(config, changes)
    before, after = estimate_fit(config), estimate_fit(changed)
    moved = after.kv_tokens - before.kv_tokens if before and after else 0
    return limits_of(changed, kv_tokens=max(base.block_size, base.kv_tokens + moved))


def _simplest(finalists: Sequence[Candidate], suggested: Sequence[Changes]) -> Candidate | None:
    """Of those as good as the best, the one with the fewest changed flags; none for too small a gain.

    Of several, one that is suggested already: a person who decides on it must not find another one instead.
    """
    if not finalists:
        return None
    best = max(finalists, key=lambda finalist: finalist.low)
    noise = max(LEAST_GAIN, ERRORS * best.noise)
    if best.gain <= noise:
        return None
    level = [finalist for finalist in finalists if finalist.gain >= best.gain - noise]
    return min(
        level, key=lambda finalist: (len(finalist.changes), finalist.changes not in suggested, -finalist.low)
    )


def _mean_attainment(parts: Sequence[Trace], law: StepLaw, limits: EngineLimits, goals: Goals) -> float:
    met = sum(attainment(ReplayedScheduler(part, law, limits).run(), goals) * len(part) for part in parts)
    return met / max(1, sum(map(len, parts)))


def _windows(trace: Trace) -> list[Trace]:
    """The begin of each of WINDOWS equal parts of the load; all of a short one."""
    total = duration_s(trace)
    length = max(LEAST_WINDOW_S, WINDOW_SHARE * total)
    if length * WINDOWS >= total:
        return [trace]
    parts = (window(trace, (place + 0.5) * total / WINDOWS - length / 2, length) for place in range(WINDOWS))
    return [part for part in parts if part]


def _changed(base: EngineLimits, seqs: int, budget: int) -> Changes:
    wanted = {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
    return {knob: value for knob, value in wanted.items() if value != getattr(base, knob)}


def _octave(value: int, step: int) -> int:
    """`value` for step 0, else a power of two so many octaves away: vLLM's compile cache knows those
    already."""
    if step == 0:
        return value
    return 1 << max(2, min(15, value.bit_length() - 1 + step))


def _distance(base: EngineLimits, seqs: int, budget: int) -> int:
    return abs(seqs.bit_length() - base.max_num_seqs.bit_length()) + abs(
        budget.bit_length() - base.max_num_batched_tokens.bit_length()
    )
