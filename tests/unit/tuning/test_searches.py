"""Each search names every point at most once, begins with the setting in force, and ends."""

from collections.abc import Callable, Sequence
from itertools import product

import pytest

from flettner.tools.tuning.searches import GridSearch, HillClimb, Point, RandomSearch, Search, Tried
from flettner.tools.tuning.tpe import TpeSearch

SPACE: Sequence[Point] = [
    {"max_num_seqs": 32, "max_num_batched_tokens": 2048},
    *(
        {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
        for seqs, budget in product((8, 16, 32, 64), (1024, 2048, 4096))
        if (seqs, budget) != (32, 2048)
    ),
]
SEARCHES: dict[str, Callable[[], Search]] = {
    "grid": lambda: GridSearch(SPACE),
    "random": lambda: RandomSearch(SPACE, 1),
    "tpe": lambda: TpeSearch(SPACE, 1),
}


def play(search: Search, goodput: Callable[[Point], float | None]) -> list[Tried]:
    tried: list[Tried] = []
    while (point := search.propose(tried)) is not None:
        tried.append(Tried(point=point, goodput=goodput(point)))
    return tried


def peak_at_16(point: Point) -> float:
    return 1 - abs(float(str(point["max_num_seqs"])) - 16) / 100


@pytest.mark.parametrize("name", SEARCHES)
def test_every_point_is_tried_once(name: str) -> None:
    tried = play(SEARCHES[name](), peak_at_16)

    assert sorted(map(repr, (trial.point for trial in tried))) == sorted(map(repr, SPACE))


def test_the_grid_ascends_by_batch_size_then_by_token_budget() -> None:
    tried = play(GridSearch(SPACE), peak_at_16)

    order = [(trial.point["max_num_seqs"], trial.point["max_num_batched_tokens"]) for trial in tried]
    assert order == list(product((8, 16, 32, 64), (1024, 2048, 4096)))


def test_a_climb_begins_at_the_setting_in_force_and_ends_on_the_peak() -> None:
    tried = play(HillClimb(SPACE), peak_at_16)

    assert tried[0].point == SPACE[0]
    assert max(tried, key=lambda trial: trial.goodput or 0.0).point["max_num_seqs"] == 16
    assert len(tried) < len(SPACE)


def test_a_point_that_did_not_serve_is_not_climbed_from() -> None:
    tried = play(HillClimb(SPACE), lambda point: None if point["max_num_seqs"] == 64 else 0.5)

    assert all(trial.point["max_num_seqs"] != 8 for trial in tried)


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_the_same_seed_proposes_the_same(name: str) -> None:
    runs = [[trial.point for trial in play(SEARCHES[name](), peak_at_16)] for _ in range(2)]

    assert runs[0] == runs[1]
