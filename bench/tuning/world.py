"""Worlds: a GPU that the model does not know, a load, objectives, and the truth at each point of a grid.

The truth is computed once for all searches: they see the same noise at the same point.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from agent.tuning.searches import Point
from bench.prediction.exactness import carried_rate, goals_of
from bench.prediction.truth import Load, Recording, kv_blocks, run_truth, traffic, unlike
from performance_model.engine_limits import EngineLimits
from performance_model.outcome import Goals
from performance_model.trace import TraceRequest

SEQS, BUDGETS = (4, 8, 16, 32, 64, 128, 256), (256, 512, 1024, 2048, 4096, 8192)  # 42 points
DEFAULT = (256, 2048)
STARTS = {"default": DEFAULT, "small batch": (8, 2048), "small budget": (256, 256)}
LEARN_S, TRIAL_S, HELD_OUT_S = 600.0, 120.0, 240.0
LEAST_REQUESTS = 100
LEAST_HELD_OUT = 400  # of the truth: with 100, single requests decide the order of plateaus


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Attainment of one run, and the number of its requests."""

    attainment: float
    requests: int

    @property
    def missed(self) -> float:
        return self.requests * (1 - self.attainment)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """`truth`: on held-out traffic. `trials`: what a canary measures, on other traffic. By point number."""

    name: str
    goals: Goals
    limits: tuple[EngineLimits, ...]
    points: tuple[Point, ...]
    rate: float
    truth: tuple[Scored, ...]
    trials: Mapping[int, Scored]
    load: Load
    seed: int
    gpu: str

    @property
    def best(self) -> float:
        return max(one.attainment for one in self.truth)

    def number_of(self, seqs: int, budget: int) -> int:
        return self.points.index({"max_num_seqs": seqs, "max_num_batched_tokens": budget})

    def learn(self, start: int) -> tuple[Recording, tuple[TraceRequest, ...]]:
        """Ten minutes of the world's traffic on one setting: what a daemon has seen."""
        seconds = max(LEARN_S, LEAST_REQUESTS / self.rate)
        trace = traffic(self.load, self.rate, seconds, self.seed + 2)
        return run_truth(trace, unlike(self.gpu, self.seed), self.limits[start], self.seed), trace


def build_world(gpu_name: str, load: Load, intensity: float, seed: int) -> World:
    """`intensity`: of the rate that the default setting carries."""
    gpu = unlike(gpu_name, seed)
    default = EngineLimits(kv_blocks=kv_blocks(gpu), enable_prefix_caching=False)
    goals = goals_of(gpu, load)
    rate = intensity * carried_rate(gpu, default, load, goals, seed)
    points: list[Mapping[str, int]] = []
    limits = []
    for seqs, budget in product(SEQS, BUDGETS):
        points.append({"max_num_seqs": seqs, "max_num_batched_tokens": budget})
        limits.append(replace(default, max_num_seqs=seqs, max_num_batched_tokens=budget))

    def run(at: int, seconds: float, least: int, shift: int) -> tuple[Scored, int]:
        trace = traffic(load, rate, max(seconds, least / rate), seed + shift)
        recording = run_truth(trace, gpu, limits[at], seed + shift)
        met = sum(
            one.ttft_s <= (goals.ttft_s or 0) and one.itl_s <= (goals.itl_s or 0)
            for one in recording.served()
        )
        return Scored(attainment=met / len(trace), requests=len(trace)), recording.peak_running

    return World(
        name=f"{gpu_name} {load.name} x{intensity:g}",
        goals=goals,
        limits=tuple(limits),
        points=tuple(points),
        rate=rate,
        truth=_sweep(limits, partial(run, seconds=HELD_OUT_S, least=LEAST_HELD_OUT, shift=300)),
        trials=_Trials(lambda at: run(at, TRIAL_S, LEAST_REQUESTS, 400)[0]),
        load=load,
        seed=seed,
        gpu=gpu_name,
    )


class _Trials(dict[int, Scored]):
    """Computed on first use."""

    def __init__(self, run: Callable[[int], Scored]) -> None:
        super().__init__()
        self._run = run

    def __missing__(self, at: int) -> Scored:
        self[at] = self._run(at)
        return self[at]


def _sweep(limits: Sequence[EngineLimits], run: Callable[[int], tuple[Scored, int]]) -> tuple[Scored, ...]:
    """`limits` have growing batches: those that a smaller one did not fill change nothing."""
    scored: list[Scored] = []
    unfilled: dict[int, Scored] = {}  # by token budget
    for at, one in enumerate(limits):
        known = unfilled.get(one.max_num_batched_tokens)
        if known is None:
            known, peak = run(at)
            if peak < one.max_num_seqs:
                unfilled[one.max_num_batched_tokens] = known
        scored.append(known)
    return tuple(scored)
