"""Predictions of settings beside their measurements: rank, error and regret, with their goals."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from statistics import fmean, median, stdev
from typing import Any

from bench.prediction.exactness import spearman
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals, measure
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.step_law import UncertainLaw
from flettner.performance_model.trace import Trace
from flettner.tools.tuning.model_search import ModelSearch, forecast_all
from flettner.tools.tuning.searches import Point, Tried
from flettner.tools.tuning.space import Space

LEAST_SPEARMAN, MOST_ERROR, MOST_REGRET = 0.7, 0.2, 0.05  # goals
Row = dict[str, Any]
Pair = tuple[int, int]  # sequences, token budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """`parts`: the slices of it that each setting served."""

    recorded: Trace
    parts: Sequence[Trace]


def average(pair: Pair, rounds: Sequence[Mapping[str, float]]) -> Row:
    """Return the mean of all rounds; `rounds`: the share of good requests in each."""
    means = {name: fmean(figures[name] for figures in rounds) for name in rounds[0]}
    return {"setting": pair, **means, "rounds": [figures["attainment"] for figures in rounds]}


def compare(
    rows: Sequence[Row], traffic: Traffic, law: UncertainLaw, limits: EngineLimits, goals: Goals
) -> Row:
    """`goals`: as far as the engine is concerned. The first row is the default."""
    pairs: list[Pair] = [row["setting"] for row in rows]
    bounds = [with_pair(limits, pair) for pair in pairs]
    predicted = [
        average(
            pair, [measure(ReplayedScheduler(part, law.law, bound).run(), goals) for part in traffic.parts]
        )
        for pair, bound in zip(pairs, bounds, strict=True)
    ]
    truth = [row["attainment"] for row in rows]
    errors = [
        abs(guess["itl_mean_s"] / row["itl_mean_s"] - 1) for guess, row in zip(predicted, rows, strict=True)
    ]
    chosen = pairs.index(_change(pairs, bounds, traffic.recorded, law, goals))
    best = truth.index(max(truth))
    return {
        "law": law.source,
        "coefficients": asdict(law.law),
        "spearman": spearman(truth, [guess["attainment"] for guess in predicted]),
        "itl_error_median": round(median(errors), 3),
        "itl_error_most": round(max(errors), 3),
        "change": pairs[chosen],
        "after_the_change": truth[chosen],
        "best": truth[best],
        "best_setting": pairs[best],
        "default": truth[0],
        "regret_of_halves": regret_of_halves([row["rounds"] for row in rows], chosen),
        "regret_error": standard_error(rows[best]["rounds"], rows[chosen]["rounds"]),
        "predicted": [
            {
                "setting": guess["setting"],
                "attainment": guess["attainment"],
                "itl_mean_s": guess["itl_mean_s"],
            }
            for guess in predicted
        ],
    }


def regret_of_halves(rounds: Sequence[Sequence[float]], chosen: int) -> float:
    """What the best setting of one half of the rounds serves more than the chosen in the other half; the mean
    of both ways. The highest of 20 measurements is high by chance too, and this is not."""
    halves = [[fmean(shares[first::2]) for shares in rounds] for first in (0, 1)]
    return fmean(
        measured[seen.index(max(seen))] - measured[chosen] for seen, measured in (halves, reversed(halves))
    )


def standard_error(shares: Sequence[float], other: Sequence[float]) -> float:
    """Return the standard error of the mean difference of two settings in the same rounds."""
    differences = [left - right for left, right in zip(shares, other, strict=True)]
    return stdev(differences) / sqrt(len(differences)) if len(differences) > 1 else 0.0


def describe(row: Row) -> str:
    """Return the figures of one comparison, each beside its goal."""
    rank, error = row["spearman"], row["itl_error_median"]
    regret = row["best"] - row["after_the_change"]
    figures = (
        (
            "rank correlation of the requests within the objectives",
            "unknown: all settings are alike" if rank is None else f"{rank:.2f}",
            f"at least {LEAST_SPEARMAN}",
            rank is not None and rank >= LEAST_SPEARMAN,
        ),
        (
            "time between tokens, median error",
            f"{error:.0%}",
            f"at most {MOST_ERROR:.0%}",
            error <= MOST_ERROR,
        ),
        (
            f"change {row['change']} below the best setting {row['best_setting']}",
            f"{100 * regret:.1f} points",
            f"at most {100 * MOST_REGRET:.0f}",
            regret <= MOST_REGRET,
        ),
    )
    lines = [
        f"{name}: {value} (goal: {goal}): {'met' if is_met else 'missed'}"
        for name, value, goal, is_met in figures
    ]
    error_points, halves = 100 * row["regret_error"], 100 * row["regret_of_halves"]
    lines += [
        f"standard error of that difference: {error_points:.1f} points",
        f"with the best setting found in the other half of the rounds: {halves:.1f} points",
    ]
    return "\n  ".join([row["law"], *lines])


def _change(
    pairs: Sequence[Pair], bounds: Sequence[EngineLimits], trace: Trace, law: UncertainLaw, goals: Goals
) -> Pair:
    """Return what `flettner tune` tries first after the default; the default if nothing promises a gain."""
    points: list[Point] = [{"max_num_seqs": seqs, "max_num_batched_tokens": budget} for seqs, budget in pairs]
    space = Space(points=points, limits=bounds, refused={})
    search = ModelSearch(space=space, forecasts=forecast_all(space, trace, law.law, goals))
    point = search.propose([Tried(point=points[0], goodput=None)])
    return pairs[points.index(point)] if point else pairs[0]


def with_pair(limits: EngineLimits, pair: Pair) -> EngineLimits:
    seqs, budget = pair
    return replace(limits, max_num_active_seqs=seqs, max_num_scheduled_tokens=budget)
