"""The course of a run: the setting in force, the law, the search, the confirmation."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flettner.agent.domain.errors import ConfigError
from flettner.performance_model.hardware_prior import prior_law
from flettner.performance_model.step_law import UncertainLaw
from flettner.tools.advisor.measured_law import find_kv_tokens, law_of_log
from flettner.tools.tuning.calibration import calibrate
from flettner.tools.tuning.model_search import ModelSearch, PointForecast, forecast_all
from flettner.tools.tuning.progress import Progress
from flettner.tools.tuning.searches import GridSearch, HillClimb, Point, RandomSearch, Search
from flettner.tools.tuning.session import Session, TunedServer, TuningPlan
from flettner.tools.tuning.space import Space, build_space
from flettner.tools.tuning.tpe import TpeSearch, import_optuna
from flettner.tools.tuning.trials import TrialFile, TuningTrial
from flettner.tools.tuning.verdict import PairedVerdict
from flettner.vllm_facts.serve_config import ServeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchChoice:
    """What to search, and how. `law`: measured before; `given`: changes to try in place of those near."""

    search: str
    law: UncertainLaw | None
    given: Sequence[Point]
    kv_tokens: int | None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """`law` and `forecasts`: of the model's search. `verdict`: None if no other setting served."""

    plan: TuningPlan
    search: str
    space: Space
    trials: Sequence[TuningTrial]
    verdict: PairedVerdict | None
    law: UncertainLaw | None
    forecasts: Sequence[PointForecast]


async def tune(
    plan: TuningPlan, choice: SearchChoice, config: ServeConfig, server: TunedServer, progress: Progress
) -> TuningResult:
    """Tune the server. Raises ConfigError, PredictionInputError."""
    if choice.search == "tpe":
        import_optuna()
    file = TrialFile(plan.out / "trials.jsonl", plan.command.words, plan.trace, plan.goals)
    session = Session(plan, server, file, progress)
    base = await session.measure_base()
    log = await asyncio.to_thread(_read_log, plan.out / base.log)
    kv_tokens = choice.kv_tokens or find_kv_tokens(log)
    space = build_space(config, kv_tokens, choice.given)
    session.place_base(space)
    law, forecasts = None, list[PointForecast]()
    if choice.search == "model":
        raw = choice.law or law_of_log(config, log, kv_tokens, plan.trace) or prior_law(config)
        law, goals = await asyncio.to_thread(calibrate, raw, plan, space.limits[0], base.measured)
        forecasts = await asyncio.to_thread(forecast_all, space, plan.trace, law.law, goals)
    await session.search(space, _build_search(choice, space, forecasts), forecasts)
    await session.confirm()
    progress.end()
    return TuningResult(
        plan=plan,
        search=choice.search,
        space=space,
        trials=file.trials,
        verdict=session.best(),
        law=law,
        forecasts=forecasts,
    )


def _build_search(choice: SearchChoice, space: Space, forecasts: Sequence[PointForecast]) -> Search:
    match choice.search:
        case "model":
            return ModelSearch(space=space, forecasts=forecasts)
        case "tpe":
            return TpeSearch(space.points, choice.seed)
        case "grid":
            return GridSearch(space.points)
        case "random":
            return RandomSearch(space.points, choice.seed)
        case "hill-climb":
            return HillClimb(space.points)
        case _:
            raise ConfigError(f"--search {choice.search}: unknown")


def _read_log(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
