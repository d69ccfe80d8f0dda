"""What all searches did in one world, and the figures over all worlds."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from random import Random
from statistics import fmean, median
from typing import Any

from bench.prediction.exactness import spearman
from bench.prediction.truth import Recording, case_of
from bench.tuning.pages import windows_of_pages
from bench.tuning.peers import (
    BLIND,
    LEAST_GAIN,
    Oracle,
    Played,
    model_search,
    play,
    replay_search,
    space_from,
)
from bench.tuning.rules import RuleSearch
from bench.tuning.world import STARTS, World
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.hardware_prior import fit_with_prior, prior_law
from flettner.performance_model.step_law import StepLaw, UncertainLaw
from flettner.performance_model.trace import Trace
from flettner.performance_model.work_windows import windows_of_steps
from flettner.tools.tuning.model_search import ModelSearch, PointForecast
from flettner.tools.tuning.searches import Search
from flettner.vllm_facts.serve_config import ServeConfig

FLAT = 0.02  # a world whose start is so near the best one is flat
SCRAPES_S = 3.0  # between two pages of a window
Row = dict[str, Any]


def play_all(
    world: World, searches: int, *, starts: Sequence[str] = tuple(STARTS), blind: bool = True
) -> list[Row]:
    """Return a row for each start and peer; blind peers with random numbers play `searches` times."""
    rows = []
    for start_name in starts:
        start = world.number_of(*STARTS[start_name])
        about = {
            "world": world.name,
            "seed": world.seed,
            "start": start_name,
            "start_regret": round(world.best - world.truth[start], 4),
            "best": round(world.best, 4),
            "spread": round(world.best - min(world.truth), 4),
            "spearman_of_truth": world.spearman_of_truth,
            "least_gain_points": 100 * FLAT,
        }
        rows.append({**about, "peer": "do nothing", **_row(play(world, start, None))})
        for name, make in BLIND.items() if blind else ():
            points = space_from(world, start).points
            times = searches if name in {"random", "Optuna TPE"} else 1
            rows += [
                {**about, "peer": name, **_row(play(world, start, make(points, world.seed * 100 + number)))}
                for number in range(times)
            ]
        informed: Mapping[str, Search] = {
            "rules alone": RuleSearch(world=world, least_gain=LEAST_GAIN),
            "oracle": Oracle(world),
        }
        rows += [
            {**about, "peer": name, **_row(play(world, start, search))} for name, search in informed.items()
        ]
        recording, trace = world.learn(start)
        for name, law in _laws(world, start, recording).items():
            rows.append({**about, "peer": name, **_play_model(world, start, law, trace)})
        replayed = _play_search(world, start, *replay_search(world, start, trace))
        rows.append({**about, "peer": "the server itself, recorded requests", **replayed})
    return rows


def _play_model(world: World, start: int, law: StepLaw | str, trace: Trace) -> Row:
    if isinstance(law, str):
        return {**_row(play(world, start, None)), "no_law": law}
    return _play_search(world, start, *model_search(world, start, law, trace))


def _play_search(world: World, start: int, search: ModelSearch, forecasts: Sequence[PointForecast]) -> Row:
    order = [world.points.index(forecast.point) for forecast in forecasts]
    truth, gains = [world.truth[at] for at in order], [forecast.gain for forecast in forecasts]
    return {
        **_row(play(world, start, search)),
        "spearman": spearman(truth, gains),
        "pairs_right": pairs_right(truth, gains, FLAT),
        "predicted_best": max(forecast.goodput for forecast in forecasts),
    }


def pairs_right(truth: Sequence[float], guess: Sequence[float], least: float) -> float | None:
    """Return the share of pairs, truly more than `least` apart, in the right order; a tie is half."""
    right = [
        0.5 if better == worse else float(better > worse)
        for (high, better), (low, worse) in permutations(zip(truth, guess, strict=True), 2)
        if high > low + least
    ]
    return fmean(right) if right else None


def _laws(world: World, start: int, recording: Recording) -> dict[str, StepLaw | str]:
    """Return the laws that can be learned at the start; a text says why there is none."""
    limits = world.limits[start]
    case, unknown = case_of(world.gpu, limits), ServeConfig(setting={})
    sheet = prior_law(case).law
    logged = list(windows_of_steps(recording.steps, limits.kv_tokens))
    pages = windows_of_pages(recording, limits, SCRAPES_S)
    fits: Mapping[str, Callable[[], UncertainLaw]] = {
        "model": lambda: fit_with_prior(case, logged, kind="steps", draws=0),
        "model, log alone": lambda: fit_with_prior(unknown, logged, kind="steps", draws=0),
        "model, histograms and data sheet": lambda: fit_with_prior(case, pages, kind="histograms", draws=0),
        "model, histograms alone": lambda: fit_with_prior(unknown, pages, kind="histograms", draws=0),
    }
    laws: dict[str, StepLaw | str] = {"model, data sheet alone": sheet}
    for name, fit in fits.items():
        try:
            laws[name] = fit().law
        except PredictionInputError as error:
            laws[name] = str(error)
    return laws


def _row(played: Played) -> Row:
    last = played.regret[-1]
    return {
        "r0": played.regret[0],
        "r1": played.regret[1] if len(played.regret) > 1 else last,
        "r3": played.regret[3] if len(played.regret) > 3 else last,  # noqa: PLR2004
        "r_end": last,
        "canaries": played.canaries,
        "exposed": round(played.exposed, 1),
    }


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return medians with 95 % bootstrap bands for each peer, over worlds and starts that are not flat."""
    table = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        own = [row for row in rows if row["peer"] == peer]
        tunable = [row for row in own if row["start_regret"] > FLAT]
        flat = [row for row in own if row["start_regret"] <= FLAT]
        ranked = [row["spearman"] for row in own if row.get("spearman") is not None and row["spread"] > FLAT]
        table.append(
            {
                "peer": peer,
                "tunable": len(tunable),
                **{key: _band([row[key] for row in tunable]) for key in ("r1", "r3", "r_end")},
                "canaries": _band([row["canaries"] for row in tunable]),
                "exposed": _band([row["exposed"] for row in tunable]),
                "exposed_all_mean": round(sum(row["exposed"] for row in own) / max(1, len(own)), 1),
                "flat": len(flat),
                "flat_without_canary": _share([row["canaries"] == 0 for row in flat]),
                "ranked": len(ranked),
                "spearman": _band(ranked),
                "pairs_right": _band(
                    [row["pairs_right"] for row in own if row.get("pairs_right") is not None]
                ),
                "spearman_of_truth": _band([row["spearman_of_truth"] for row in own if row["spread"] > FLAT]),
                "no_law": sum("no_law" in row for row in own),
            }
        )
    return table


def _band(values: Sequence[float]) -> Mapping[str, float] | None:
    if not values:
        return None
    random = Random("bands")  # noqa: S311 - reproducible, not secret
    drawn = sorted(median(random.choices(values, k=len(values))) for _ in range(500))
    return {
        "median": round(median(values), 4),
        "low": round(drawn[12], 4),
        "high": round(drawn[487], 4),
    }


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
