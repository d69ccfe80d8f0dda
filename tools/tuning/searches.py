"""Choose the next setting without a model, as other tuners do, over the same points.

A point gives each knob of a space a value; the first point of a space is the setting in force. A search gets
the tried points and returns the next one, or None at its end. Pure, but for seeded draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from flettner.vllm_facts.values import Knob, Value

Point = Mapping[Knob, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """`goodput`: share of the requests within the objectives; None if the server did not start."""

    point: Point
    goodput: float | None


class Search(Protocol):
    def propose(self, tried: Sequence[Tried]) -> Point | None:
        """Return the next untried point; None at the end of the search."""


def untried(space: Sequence[Point], tried: Sequence[Tried]) -> list[Point]:
    points = [trial.point for trial in tried]
    return [point for point in space if point not in points]


@dataclass(frozen=True, slots=True)
class GridSearch:
    """Every candidate in the order of vLLM's auto_tune.sh: by batch size, then by token budget."""

    space: Sequence[Point]

    def propose(self, tried: Sequence[Tried]) -> Point | None:
        left = untried(self.space, tried)
        return min(left, key=_ascending, default=None)


@dataclass(frozen=True, slots=True)
class RandomSearch:
    space: Sequence[Point]
    seed: int = 0

    def propose(self, tried: Sequence[Tried]) -> Point | None:
        left = untried(self.space, tried)
        random = Random(f"random search:{self.seed}:{len(tried)}")  # noqa: S311 - reproducible, not secret
        return random.choice(left) if left else None


@dataclass(frozen=True, slots=True)
class HillClimb:
    """Change one knob by one step, from the best point so far; end where no neighbour is better."""

    space: Sequence[Point]

    def propose(self, tried: Sequence[Tried]) -> Point | None:
        served = [trial for trial in tried if trial.goodput is not None]
        if not served:
            return next(iter(untried(self.space, tried)), None)
        best = max(served, key=lambda trial: trial.goodput or 0.0)
        left = untried(self.space, tried)
        scales = scales_of(self.space)
        return next((trial for trial in left if _is_neighbour(best.point, trial, scales)), None)


def scales_of(space: Sequence[Point]) -> dict[Knob, list[Value]]:
    """Return the values of each knob in ascending order."""
    return {
        knob: sorted(dict.fromkeys(point[knob] for point in space), key=_order)
        for knob in next(iter(space), {})
    }


def _is_neighbour(point: Point, other: Point, scales: Mapping[Knob, Sequence[Value]]) -> bool:
    different = [knob for knob in point if point[knob] != other[knob]]
    if len(different) != 1:
        return False
    scale = scales[different[0]]
    return abs(scale.index(point[different[0]]) - scale.index(other[different[0]])) == 1


def _ascending(point: Point) -> tuple[tuple[int, float, str], ...]:
    leading = [knob for knob in ("max_num_seqs", "max_num_batched_tokens") if knob in point]
    return tuple(_order(point[knob]) for knob in (*sorted(set(point) - set(leading)), *leading))


def _order(value: Value) -> tuple[int, float, str]:
    if isinstance(value, bool | int | float):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))
