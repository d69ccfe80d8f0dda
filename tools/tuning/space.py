"""The points that a search may try: near the setting in force, or from a file, without those vLLM refuses."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of, veto, with_changes
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.search import neighbours
from flettner.tools.tuning.searches import Point
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Knob, Value

MOST = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """`points[0]` is the setting in force, `limits` the engine's bounds at each point.

    `refused`: reasons for which candidates were left out, with their number.
    """

    points: Sequence[Point]
    limits: Sequence[EngineLimits]
    refused: dict[str, int]

    def changes_to(self, point: Point) -> dict[Knob, Value]:
        """Return the flags that differ from the setting in force."""
        return {knob: value for knob, value in point.items() if value != self.points[0][knob]}


def build_space(config: ServeConfig, kv_tokens: int | None, given: Sequence[Point]) -> Space:
    """`given`: changes to try, in place of those near the setting.

    Raises PredictionInputError if the setting in force cannot be modelled.
    """
    base = limits_of(config, kv_tokens=kv_tokens)
    candidates = list(given) if given else list(neighbours(config, base))
    knobs = list(dict.fromkeys(knob for changes in candidates for knob in changes))
    own = {**asdict(base), **config.setting}
    first: Point = {knob: own.get(knob) for knob in knobs}
    points, limits, refused = [first], [base], dict[str, int]()
    for changes in _distinct({**first, **changes} for changes in candidates):
        if changes in points or len(points) > MOST:
            continue
        moved = {knob: value for knob, value in changes.items() if value != first[knob]}
        changed = with_changes(config, moved)
        try:
            moved_limits = limits_of(changed, kv_tokens=_moved_kv(config, changed, base))
            why = veto(changed, moved_limits)
        except PredictionInputError as error:
            why, moved_limits = str(error), base
        if why:
            refused[why] = refused.get(why, 0) + 1
        else:
            points.append(changes)
            limits.append(moved_limits)
    return Space(points=points, limits=limits, refused=refused)


def _moved_kv(config: ServeConfig, changed: ServeConfig, base: EngineLimits) -> int:
    """Scale the measured KV cache by the estimated effect of the change."""
    before, after = estimate_fit(config), estimate_fit(changed)
    moved = after.kv_tokens - before.kv_tokens if before and after else 0
    return max(base.block_size, base.kv_tokens + moved)


def _distinct(points: Iterable[Point]) -> list[Point]:
    distinct: list[Point] = []
    for point in points:
        if point not in distinct:
            distinct.append(point)
    return distinct
