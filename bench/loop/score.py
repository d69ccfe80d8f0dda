"""What a run is worth: first suggestion, harm, minutes to a right setting, requests lost, regret."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from bench.loop.run import Run, RunRollout, RunSuggestion
from bench.loop.static import TAIL_S, best, configured, goodput, is_good, measured, moves_right, of_start
from bench.loop.world import World
from flettner.agent.domain.model import Slo
from flettner.vllm_facts.values import Setting
from tests.support.virtual_server import Ended

HARM = 0.01  # a suggestion whose goodput is lower by more is harmful
NEAR_BEST, NEAR_RIGHT = 0.02, 0.10  # of the best goodput: right as it is; right if a named knob moved
BETTER, EQUAL = 0.10, 0.01  # a green's goodput against that of the setting in force
MOST = 95  # percent of the traffic
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSuggestion:
    suggestion: RunSuggestion
    right: bool
    harmful: bool
    gain: float  # of the true goodput, against the setting in force


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The figures of one run. Times count from the begin of the load; goodput as a share of requests."""

    world: str
    seed: int
    curable: bool
    rate: float  # requests/s, mean over the load
    start: float  # goodput of the setting that the world begins with, without a daemon
    suggestions: tuple[ScoredSuggestion, ...]
    rollouts: tuple[RunRollout, ...]
    gains: Mapping[str, float]  # by rollout
    symptom_s: float | None  # end of the first minute in which the SLO was missed
    right_since_s: float | None  # 95 % of the traffic has a right setting
    minutes: tuple[float | None, ...]  # goodput by minute of arrival
    end: float
    best_end: float
    best: Mapping[str, object]
    sent: int
    lost: int  # failed, cut, aborted or refused
    gave_up: int  # by their clients, after their patience
    outcomes: Mapping[str, int]
    shares: tuple[tuple[float, Mapping[str, int]], ...]
    notes: tuple[tuple[float, str], ...]
    cpu_s: float
    missed: tuple[str, ...] = ()  # of the demands that the world itself makes

    @property
    def regret(self) -> float:
        return self.best_end - self.end

    @property
    def first(self) -> ScoredSuggestion | None:
        return self.suggestions[0] if self.suggestions else None

    @property
    def first_right(self) -> bool:
        """In a world that no flag cures, nothing is right to suggest."""
        return (self.first is not None and self.first.right) if self.curable else self.first is None

    @property
    def cure_s(self) -> float | None:
        """Return the seconds from the symptom until 95 % of the traffic had a right setting."""
        if self.symptom_s is None or self.right_since_s is None:
            return None
        return max(0.0, self.right_since_s - self.symptom_s)


def score(world: World, run: Run) -> Score:
    sweep, begin = best(world), configured(world)
    right = partial(is_right, world, best_whole=sweep.goodput.whole)
    good = [(request.arrived_s, is_good(world, request)) for request in run.ended]
    minutes = tuple(
        _share(good, m * MINUTE_S, (m + 1) * MINUTE_S) for m in range(int(world.seconds // MINUTE_S))
    )
    suggestions = tuple(
        _scored(world, suggestion) for suggestion in run.suggestions if suggestion.klass != "note"
    )
    in_force = {name: right(setting, begin) for name, setting in run.settings.items()}
    symptom_s = symptom(world, run.ended)
    scored = Score(
        world=run.world,
        seed=run.seed,
        curable=world.right is not None,
        rate=sum(phase.seconds * phase.rate for phase in world.load) / world.seconds,
        start=of_start(world).whole,
        suggestions=suggestions,
        rollouts=run.rollouts,
        gains={rollout.id: _gain(world, run, rollout) for rollout in run.rollouts},
        symptom_s=symptom_s,
        right_since_s=next((at_s for at_s, shares in run.shares if _part(shares, in_force) >= MOST), None),
        minutes=minutes,
        end=_share(good, world.seconds - TAIL_S, world.seconds) or 0.0,
        best_end=sweep.goodput.tail,
        best=dict(sweep.change),
        sent=run.sent,
        lost=sum(request.outcome not in {"ok", "gave_up"} for request in run.ended),
        gave_up=sum(request.outcome == "gave_up" for request in run.ended),
        outcomes=dict(Counter(request.outcome for request in run.ended)),
        shares=run.shares,
        notes=run.notes,
        cpu_s=run.cpu_s,
    )
    return replace(scored, missed=tuple(_missed(world, scored)))


def _missed(world: World, scored: Score) -> Iterator[str]:
    """Name the demands of the world, such as `good_at_end`, that the run missed."""
    if world.within_min is None and world.good_at_end is None:
        return
    if not scored.first_right:
        yield "first suggestion"
    if scored.lost > world.lost_most:
        yield f"{scored.lost} requests lost"
    if world.good_at_end is not None and scored.end < world.good_at_end:
        yield f"goodput {scored.end:.2f} at the end"
    if world.within_min is not None and (scored.right_since_s or inf) > 60 * world.within_min:
        yield f"not right within {world.within_min:g} min"
    if (wrong := sum(not suggestion.right for suggestion in scored.suggestions)) > world.wrong_most:
        yield f"{wrong} wrong suggestions"


def is_right(world: World, setting: Setting, start: Setting, *, best_whole: float) -> bool:
    """Return whether the setting is within 2 points of the best; 10, if the named knobs moved rightly."""
    attained = goodput(world, setting).whole
    if attained >= best_whole - NEAR_BEST:
        return True
    return attained >= best_whole - NEAR_RIGHT and moves_right(world, start, setting)


def symptom(world: World, ended: Sequence[Ended]) -> float | None:
    """Return the end of the first minute of arrivals that missed an objective; None without such a minute."""
    rows = sorted((request for request in ended), key=lambda request: request.arrived_s)
    late = [_misses(world.slo, request) for request in rows]
    shares = [o.share for o in (world.slo.ttft, world.slo.itl, world.slo.e2e) if o is not None]
    first = last = 0
    counts = [0] * len(shares)
    for at_s in range(int(MINUTE_S), int(world.seconds) + 1):
        while last < len(rows) and rows[last].arrived_s < at_s:
            counts = [count + miss for count, miss in zip(counts, late[last], strict=True)]
            last += 1
        while first < last and rows[first].arrived_s < at_s - MINUTE_S:
            counts = [count - miss for count, miss in zip(counts, late[first], strict=True)]
            first += 1
        requests = last - first
        if requests and any(
            count > (1 - share) * requests for count, share in zip(counts, shares, strict=True)
        ):
            return float(at_s)
    return None


def _misses(slo: Slo, request: Ended) -> tuple[bool, ...]:
    return tuple(
        request.outcome != "ok" or value is None or value > objective.under_s
        for objective, value in measured(slo, request)
    )


def _scored(world: World, suggestion: RunSuggestion) -> ScoredSuggestion:
    after = {**suggestion.in_force, **suggestion.to}
    gain = goodput(world, after).whole - goodput(world, suggestion.in_force).whole
    return ScoredSuggestion(
        suggestion=suggestion,
        right=moves_right(world, suggestion.in_force, after),
        harmful=gain < -HARM,
        gain=round(gain, 4),
    )


def _gain(world: World, run: Run, rollout: RunRollout) -> float:
    suggestion = next(
        (suggestion for suggestion in run.suggestions if suggestion.id == rollout.suggestion), None
    )
    if suggestion is None:
        return 0.0
    after = goodput(world, {**suggestion.in_force, **suggestion.to})
    return round(after.whole - goodput(world, suggestion.in_force).whole, 4)


def _part(shares: Mapping[str, int], right: Mapping[str, bool]) -> int:
    return sum(weight for name, weight in shares.items() if right.get(name, False))


def _share(good: Sequence[tuple[float, bool]], since_s: float, until_s: float) -> float | None:
    """Return the share of good requests among those that arrived then."""
    answers = [met for at_s, met in good if since_s <= at_s < until_s]
    return round(sum(answers) / len(answers), 4) if answers else None
