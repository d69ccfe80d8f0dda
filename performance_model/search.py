"""Searches the settings near the one in force for one that serves the recorded load better.

Candidates race: all of them on short windows of the load, the best few on the whole load. The windows are
the same for all, so requests, not luck, tell them apart. The gain of the winner is judged by pairs: the
difference of goodput in each block of BLOCK_S seconds. Plateaus are the rule, so the winner is the setting
with the fewest changed flags among those that are as good as the best, and no change is proposed for a gain
within max(2 %, 2 standard errors).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt

from performance_model.engine import Engine, EngineRun
from performance_model.engine_limits import EngineLimits
from performance_model.engine_settings import limits_of, veto, with_changes
from performance_model.errors import PredictionInputError
from performance_model.outcome import Goals, attainment
from performance_model.resample import window
from performance_model.step_law import StepLaw, UncertainLaw
from performance_model.trace import Trace, duration_s
from vllm_facts.deployment import Deployment
from vllm_facts.sizing.kv_cache import estimate_fit
from vllm_facts.values import Knob, Value

WINDOWS, WINDOW_SHARE = 3, 0.03  # of the load, for the first round: each candidate sees 9 %
LEAST_WINDOW_S = 20.0
FINALISTS = 6
LEAST_GAIN = 0.02  # of the requests: below, restarts cost more than they bring
ERRORS = 2.0  # standard errors that a gain must exceed
BLOCK_S = 30.0
MOST = 60

Changes = Mapping[Knob, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setting near the one in force; `attainment` is over the whole load, None if it lost the first
    round."""

    changes: Changes
    limits: EngineLimits
    screened: float  # attainment on the windows
    attainment: float | None = None


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


def search(
    case: Deployment, trace: Trace, law: UncertainLaw, goals: Goals, *, kv_tokens: int | None = None
) -> SearchResult:
    """Raises PredictionInputError if the setting in force cannot be predicted."""
    base = limits_of(case, kv_tokens=kv_tokens)
    vetoed: dict[str, int] = {}
    nearby = list(_admissible(case, base, vetoed))
    parts = _windows(trace)
    screened = sorted(
        (
            Candidate(
                changes=changes, limits=limits, screened=_mean_attainment(parts, law.law, limits, goals)
            )
            for changes, limits in nearby
        ),
        key=lambda one: (-one.screened, len(one.changes)),
    )
    base_run = Engine(trace, law.law, base).run()
    own = attainment(base_run, goals)
    finalists = []
    for one in screened[:FINALISTS] if own < 1 - LEAST_GAIN / 2 else ():
        run = Engine(trace, law.law, one.limits).run()
        gain, noise = paired_gain(base_run, run, goals)
        finalists.append(
            (
                gain,
                noise,
                Candidate(
                    changes=one.changes, limits=one.limits, screened=one.screened, attainment=own + gain
                ),
            )
        )
    gain, noise, best = _simplest(finalists)
    return SearchResult(
        base=own,
        best=best,
        gain=gain,
        noise=noise,
        likely=_share_better(parts, law, base, best.limits, goals) if best else 0.0,
        tried=len(nearby),
        vetoed=vetoed,
        finalists=tuple(one for _, _, one in sorted(finalists, key=lambda found: -found[0])),
    )


def neighbours(case: Deployment, base: EngineLimits) -> Iterator[Changes]:
    """Settings up to three octaves of batch size and token budget away, and one step of the other flags."""
    seqs = [_octave(base.max_num_seqs, step) for step in (0, -1, 1, -2, 2, -3, 3)]
    budgets = [_octave(base.max_num_batched_tokens, step) for step in (0, -1, 1, -2, 2)]
    share = case.setting.get("gpu_memory_utilization")
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
    yield from (one for one in pairs if one)
    yield from (one for one in singles if any(case.setting.get(knob) != value for knob, value in one.items()))
    yield from ({**single, **pair} for single in singles[-2:] for pair in pairs[:9] if pair)


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
    case: Deployment, base: EngineLimits, vetoed: dict[str, int]
) -> Iterator[tuple[Changes, EngineLimits]]:
    count = 0
    for changes in neighbours(case, base):
        if count == MOST:
            return
        changed = with_changes(case, changes)
        try:
            limits = limits_of(changed, kv_tokens=_moved_kv(case, changed, base))
            why = veto(changed, limits)
        except PredictionInputError as error:
            why, limits = str(error), base
        if why:
            vetoed[why] = vetoed.get(why, 0) + 1
            continue
        count += 1
        yield changes, limits


def _moved_kv(case: Deployment, changed: Deployment, base: EngineLimits) -> int:
    """The KV cache in force, moved by what the estimate says of the change."""
    before, after = estimate_fit(case), estimate_fit(changed)
    moved = after.kv_tokens - before.kv_tokens if before and after else 0
    return max(base.block_size, base.kv_tokens + moved)


def _simplest(finalists: Sequence[tuple[float, float, Candidate]]) -> tuple[float, float, Candidate | None]:
    """Of those as good as the best, the one with the fewest changed flags; none for too small a gain."""
    if not finalists:
        return 0.0, 0.0, None
    most, noise, _ = max(finalists, key=lambda found: found[0])
    if most <= max(LEAST_GAIN, ERRORS * noise):
        return most, noise, None
    level = [found for found in finalists if found[0] >= most - max(LEAST_GAIN, ERRORS * noise)]
    return min(level, key=lambda found: (len(found[2].changes), -found[0]))


def _share_better(
    parts: Sequence[Trace], law: UncertainLaw, base: EngineLimits, best: EngineLimits, goals: Goals
) -> float:
    laws = law.draws or (law.law,)
    wins = sum(
        _mean_attainment(parts, one, best, goals) > _mean_attainment(parts, one, base, goals) for one in laws
    )
    return wins / len(laws)


def _mean_attainment(parts: Sequence[Trace], law: StepLaw, limits: EngineLimits, goals: Goals) -> float:
    met = sum(attainment(Engine(part, law, limits).run(), goals) * len(part) for part in parts)
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
