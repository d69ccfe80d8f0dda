"""Worlds: a GPU that the model does not know, a load, objectives, and the truth at each point of a grid.

The truth is computed once for all searches: they see the same noise at the same point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from statistics import fmean

from bench.prediction.exactness import spearman
from bench.prediction.truth import Load, Recording, TrueServer, run_truth, traffic, unlike
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals
from flettner.performance_model.trace import TraceRequest
from flettner.tools.tuning.searches import Point

SEQS, BUDGETS = (4, 8, 16, 32, 64, 128, 256), (256, 512, 1024, 2048, 4096, 8192)  # 42 points
DEFAULT = (256, 2048)
STARTS = {"default": DEFAULT, "small batch": (8, 2048), "small budget": (256, 256)}
LEARN_S, TRIAL_S = 600.0, 120.0
LEAST_REQUESTS = 100
TRUTHS = 6
"""Runs of the truth, each as long as the recording: under overload a longer one serves a smaller share. The
order of the points by one run and by another had a rank correlation of 0.8 to 0.9."""
FIRST_TRUTH, TRIAL = 1000, 400  # added to the seed of the world: loads that the model does not see


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Attainment of one run, and the number of its requests."""

    attainment: float
    requests: int

    @property
    def missed(self) -> float:
        return self.requests * (1 - self.attainment)


Good = Sequence[float]
"""Of the requests of a load, in order: 1 for each that met the objectives, else 0."""


@dataclass(frozen=True, kw_only=True)
class World:
    """By point number. `truths`: shares of the requests of each held-out load that meet the objectives.

    `trials`: what a canary measures, on another load.
    """

    name: str
    goals: Goals
    limits: tuple[EngineLimits, ...]
    points: tuple[Point, ...]
    rate: float
    truths: Sequence[Sequence[float]]
    trials: Mapping[int, Scored]
    load: Load
    seed: int
    gpu: str

    @cached_property
    def truth(self) -> Sequence[float]:
        """Return the mean over the held-out loads."""
        return [fmean(draws) for draws in zip(*self.truths, strict=True)]

    @property
    def best(self) -> float:
        return max(self.truth)

    @property
    def spearman_of_truth(self) -> float | None:
        """Return how well the order by as many other loads would agree: of halves, by Spearman and Brown."""
        odd, even = ([fmean(draws) for draws in zip(*self.truths[at::2], strict=True)] for at in (0, 1))
        rho = spearman(odd, even)
        return None if rho is None else 2 * rho / (1 + rho)

    def number_of(self, seqs: int, budget: int) -> int:
        return self.points.index({"max_num_seqs": seqs, "max_num_batched_tokens": budget})

    def learn(self, start: int) -> tuple[Recording, tuple[TraceRequest, ...]]:
        """Serve ten minutes of the world's traffic on one setting: what a daemon has seen."""
        trace = self.traffic(2, LEARN_S)
        return run_truth(trace, unlike(self.gpu, self.seed), self.limits[start], self.seed), trace

    def traffic(self, shift: int, seconds: float) -> tuple[TraceRequest, ...]:
        """Draw LEAST_REQUESTS at least."""
        return traffic(self.load, self.rate, max(seconds, LEAST_REQUESTS / self.rate), self.seed + shift)

    def serve(self, trace: Sequence[TraceRequest], at: int, noise: int) -> tuple[Good, int]:
        """Serve the requests; return also the most that ran at a time."""
        recording = run_truth(trace, unlike(self.gpu, self.seed), self.limits[at], self.seed + noise)
        return list(map(float, recording.good(self.goals))), recording.peak_running

    def sweep(self, trace: Sequence[TraceRequest], noise: int) -> list[Good]:
        """Serve the trace at each point. Batches grow: above a batch that was not filled nothing changes."""
        goods: list[Good] = []
        unfilled: dict[int, Good] = {}  # by token budget
        for at, limits in enumerate(self.limits):
            good = unfilled.get(limits.max_num_batched_tokens)
            if good is None:
                good, peak = self.serve(trace, at, noise)
                if peak < limits.max_num_seqs:
                    unfilled[limits.max_num_batched_tokens] = good
            goods.append(good)
        return goods


def build_world(gpu_name: str, load: Load, intensity: float, seed: int) -> World:
    """`intensity`: of the rate that the default setting carries."""
    server = TrueServer(gpu_name, load, seed)
    settings = list(product(SEQS, BUDGETS))
    world = World(
        name=f"{gpu_name} {load.name} x{intensity:g}",
        goals=server.goals,
        limits=tuple(server.with_limits(seqs, budget) for seqs, budget in settings),
        points=tuple({"max_num_seqs": seqs, "max_num_batched_tokens": budget} for seqs, budget in settings),
        rate=intensity * server.carried_rate,
        truths=(),
        trials={},
        load=load,
        seed=seed,
        gpu=gpu_name,
    )
    return replace(
        world,
        truths=[
            [fmean(good) for good in world.sweep(world.traffic(shift, LEARN_S), shift)]
            for shift in range(FIRST_TRUTH, FIRST_TRUTH + TRUTHS)
        ],
        trials=_Trials(world, world.traffic(TRIAL, TRIAL_S)),
    )


class _Trials(dict[int, Scored]):
    """Computed on first use."""

    def __init__(self, world: World, trace: Sequence[TraceRequest]) -> None:
        super().__init__()
        self._world, self._trace = world, trace

    def __missing__(self, at: int) -> Scored:
        good, _ = self._world.serve(self._trace, at, TRIAL)
        self[at] = Scored(attainment=fmean(good), requests=len(good))
        return self[at]
