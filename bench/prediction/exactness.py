"""Rank correlation, regret and errors of predictions for settings that were never tried."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log2, sqrt
from statistics import mean, median
from typing import Any

from bench.prediction.truth import LOADS, Load, Recording, TrueServer, case_of
from flettner.performance_model.hardware_prior import fit_with_prior
from flettner.performance_model.outcome import Goals, attainment, measure
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.work_windows import windows_of_steps
from flettner.primitives.quantiles import quantile

GPUS = ("4090-8b", "h100-8b", "t4-8b-awq")
SEQS, BUDGETS = (8, 16, 64, 256), (256, 2048, 8192)
SECONDS, LEAST_REQUESTS = 120.0, 100  # of the load that settings are compared on
LEARN_S = 600.0
LEARN_RATE = 0.7  # of what the default carries: ordinary traffic, on which the law is fitted
TRY_RATE = 1.25
FAR = 2  # octaves from the recorded setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting: the truth and the prediction."""

    octaves: float
    truth: dict[str, float]
    guess: dict[str, float]


def run_world(gpu_name: str, load: Load, seed: int) -> dict[str, Any]:
    """Fit on the default setting, predict a grid of others, and compare with the truth of each."""
    server = TrueServer(gpu_name, load, seed)
    default, goals, rate = server.default, server.goals, server.carried_rate
    learn_s, try_s = max(LEARN_S, LEAST_REQUESTS / rate), max(SECONDS, LEAST_REQUESTS / rate)
    learnt = server.run(server.traffic(LEARN_RATE * rate, learn_s, 2), default, 0)
    rows = list(windows_of_steps(learnt.steps, default.kv_tokens))
    law = fit_with_prior(case_of(gpu_name, default), rows, kind="steps", draws=0).law
    trace = server.traffic(TRY_RATE * rate, try_s, 3)
    points = []
    for seqs, budget in product(SEQS, BUDGETS):
        if budget < seqs:
            continue
        limits = server.with_limits(seqs, budget)
        run = ReplayedScheduler(trace, law, limits).run()
        octaves = max(
            abs(log2(seqs / default.max_num_seqs)), abs(log2(budget / default.max_num_batched_tokens))
        )
        points.append(
            Point(
                octaves=octaves,
                truth=summarise(server.run(trace, limits, 4), goals),
                guess={**measure(run, goals), "goodput": attainment(run, goals)},
            )
        )
    return {"gpu": gpu_name, "load": load.name, "rate": round(rate, 2), **_score(points)}


def summarise(recording: Recording, goals: Goals) -> dict[str, float]:
    """Return the numbers that are compared, of measured requests."""
    served = recording.served()
    waits = sorted(request.ttft_s for request in served)
    return {
        "goodput": mean(recording.good(goals)),
        "ttft_p90_s": quantile(waits, 0.9),
        "ttft_p99_s": quantile(waits, 0.99),
        "itl_mean_s": mean(request.itl_s for request in served if request.itl_s > 0),
    }


def _score(points: Sequence[Point]) -> dict[str, Any]:
    truths = [point.truth["goodput"] for point in points]
    guesses = [point.guess["goodput"] for point in points]
    chosen = max(range(len(points)), key=lambda at: guesses[at])
    order = spearman(truths, guesses)
    far = [point for point in points if point.octaves >= FAR]
    errors = {
        name: [abs(point.guess[name] / point.truth[name] - 1) for point in far]
        for name in ("ttft_p90_s", "ttft_p99_s", "itl_mean_s")
    }
    return {
        "spearman": None if order is None else round(order, 3),
        "regret_points": round(100 * (max(truths) - truths[chosen]), 2),
        "goodput_error_points": round(
            100 * mean(abs(a - b) for a, b in zip(truths, guesses, strict=True)), 2
        ),
        "spread_points": round(100 * (max(truths) - min(truths)), 1),
        "far": {
            name: {"median": round(median(values), 3), "p90": round(quantile(sorted(values), 0.9), 3)}
            for name, values in errors.items()
        },
    }


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Correlation of ranks, ties with their mean rank; 1 if one side is constant and so has no order to
    miss."""
    lefts, rights = _ranks(left), _ranks(right)
    middle = (len(lefts) - 1) / 2
    spread = sum((a - middle) ** 2 for a in lefts) * sum((b - middle) ** 2 for b in rights)
    if spread == 0:
        return None
    return sum((a - middle) * (b - middle) for a, b in zip(lefts, rights, strict=True)) / sqrt(spread)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [mean(at for at, value in enumerate(order) if value == wanted) for wanted in values]


def run_all(seed: int = 1) -> list[dict[str, Any]]:
    return [run_world(gpu, load, seed) for gpu in GPUS for load in LOADS]
