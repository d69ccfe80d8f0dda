"""What all searches did in one world, and the figures over all worlds."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from bench.prediction.exactness import spearman
from bench.prediction.truth import Recording
from bench.tuning.pages import windows_of_pages
from bench.tuning.peers import BLIND, Played, model_search, play, space_from
from bench.tuning.world import STARTS, World
from performance_model.errors import PredictionInputError
from performance_model.fit import fit_law
from performance_model.hardware_prior import prior_law, scaled_prior
from performance_model.step_law import StepLaw
from performance_model.trace import Trace
from performance_model.work_windows import windows_of_steps
from vllm_facts.deployment import Deployment
from vllm_facts.models.lookup import find_model
from vllm_facts.sizing.gpus import find_gpu

FLAT = 0.02  # a world whose start is so near the best one is flat
SCRAPES_S = 3.0  # between two pages of a window
_GPUS = {
    "4090-8b": ("RTX 4090", "meta-llama/Llama-3.1-8B"),
    "h100-8b": ("H100", "meta-llama/Llama-3.1-8B"),
    "t4-8b-awq": ("Tesla T4", "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"),
}
Row = dict[str, Any]


def play_all(
    world: World, searches: int, *, starts: Sequence[str] = tuple(STARTS), blind: bool = True
) -> list[Row]:
    """A row for each start and peer; blind peers with random numbers play `searches` times."""
    rows = []
    for start_name in starts:
        start = world.number_of(*STARTS[start_name])
        about = {
            "world": world.name,
            "seed": world.seed,
            "start": start_name,
            "start_regret": round(world.best - world.truth[start].attainment, 4),
            "best": round(world.best, 4),
            "spread": round(world.best - min(one.attainment for one in world.truth), 4),
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
        recording, trace = world.learn(start)
        for name, law in _laws(world, start, recording).items():
            rows.append({**about, "peer": name, **_play_model(world, start, law, trace)})
    return rows


def _play_model(world: World, start: int, law: StepLaw | str, trace: Trace) -> Row:
    if isinstance(law, str):
        return {**_row(play(world, start, None)), "no_law": law}
    search, forecasts = model_search(world, start, law, trace)
    order = [world.points.index(one.point) for one in forecasts]
    rho = spearman([world.truth[at].attainment for at in order], [one.goodput for one in forecasts])
    return {**_row(play(world, start, search)), "spearman": rho, "predicted_best": max(_goods(forecasts))}


def _goods(forecasts: Iterable[Any]) -> list[float]:
    return [one.goodput for one in forecasts]


def _laws(world: World, start: int, recording: Recording) -> dict[str, StepLaw | str]:
    """What can be learned at the start; a text says why not."""
    limits = world.limits[start]
    gpu, model = _GPUS[world.gpu]
    case = Deployment(setting={"model": model}, card=find_gpu(gpu), model=find_model(model))
    pages = windows_of_pages(recording, limits, SCRAPES_S)
    known, unknown = (scaled_prior(one, pages) for one in (case, Deployment(setting={})))
    found: dict[str, StepLaw | str] = {"model, data sheet alone": prior_law(case).law}
    for name, windows, prior in (
        ("model", list(windows_of_steps(recording.steps, limits.kv_tokens)), None),
        ("model, histograms and data sheet", pages, known),
        ("model, histograms alone", pages, unknown),
        ("model, histograms, no prior", pages, None),
    ):
        try:
            found[name] = fit_law(windows, draws=0, attention_us=known.attention_us, prior=prior).law
        except PredictionInputError as error:
            found[name] = str(error)
    return found


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
    """Medians with 95 % bootstrap bands for each peer, over worlds and starts that are not flat."""
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
                "spearman": _band(ranked) if ranked else None,
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
