"""The searches that are compared. All get the same canaries: a window of the world's full traffic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.tuning.world import World
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.trace import Trace
from flettner.tools.tuning.model_search import ModelSearch, PointForecast, forecast_all
from flettner.tools.tuning.searches import GridSearch, HillClimb, Point, RandomSearch, Search, Tried
from flettner.tools.tuning.space import Space
from flettner.tools.tuning.tpe import TpeSearch
from flettner.tools.tuning.verdict import paired_gain

MOST_CANARIES = 20
REPLAY = 500  # added to the seed of the world: the noise of a replay is not that of the recording
LEAST_GAIN = 0.02  # of the requests: the gain from which a canary is promoted
BLIND: Mapping[str, Callable[[Sequence[Point], int], Search]] = {
    "grid of auto_tune": lambda points, _: GridSearch(points),
    "Optuna TPE": TpeSearch,
    "random": RandomSearch,
    "hill-climb": lambda points, _: HillClimb(points),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """`regret[k]`: of the setting in force after k canaries, in shares of the requests; `exposed`: requests
    of canaries that missed the objectives and would not have in the setting in force before them."""

    regret: tuple[float, ...]
    exposed: float
    canaries: int


def play(world: World, start: int, search: Search | None) -> Played:
    """From the point number `start`; None never tries anything. The first trial is the setting in force,
    which serves anyway."""
    own, exposed = start, 0.0
    regret = [world.best - world.truth[own]]
    tried = [Tried(point=world.points[start], goodput=world.trials[start].attainment)]
    while search is not None and len(tried) <= MOST_CANARIES:
        point = search.propose(tried)
        if point is None:
            break
        at = world.points.index(point)
        measured = world.trials[at]
        exposed += max(0.0, measured.missed - world.trials[own].missed)
        tried.append(Tried(point=point, goodput=measured.attainment))
        if measured.attainment > world.trials[own].attainment + LEAST_GAIN:
            own = at
        regret.append(world.best - world.truth[own])
    return Played(regret=tuple(regret), exposed=exposed, canaries=len(tried) - 1)


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows the truth: proposes the best point, then nothing."""

    world: World

    def propose(self, tried: Sequence[Tried]) -> Point | None:
        best = self.world.points[self.world.truth.index(self.world.best)]
        return None if best in [trial.point for trial in tried] else best


def space_from(world: World, start: int) -> Space:
    """Return the points of the world with the start first."""
    order = [start, *(at for at in range(len(world.points)) if at != start)]
    return Space(
        points=[world.points[at] for at in order], limits=[world.limits[at] for at in order], refused={}
    )


def replay_search(world: World, start: int, trace: Trace) -> tuple[ModelSearch, list[PointForecast]]:
    """Return a model without any error: the server itself serves the recorded requests at each point."""
    space, good = space_from(world, start), world.sweep(trace, REPLAY)
    order = [good[world.points.index(point)] for point in space.points]
    forecasts = []
    for point, shares in zip(space.points, order, strict=True):
        gain, noise = paired_gain(trace, order[0], shares)
        forecasts.append(PointForecast(point=point, goodput=fmean(shares), gain=gain, noise=noise))
    return ModelSearch(space=space, forecasts=forecasts), forecasts


def model_search(
    world: World, start: int, law: StepLaw, trace: Trace
) -> tuple[ModelSearch, list[PointForecast]]:
    """`trace`: recorded before; the canaries and the truth get other traffic of the same kind."""
    space = space_from(world, start)
    forecasts = forecast_all(space, trace, law, world.goals)
    return ModelSearch(space=space, forecasts=forecasts), forecasts
