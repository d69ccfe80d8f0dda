"""The benchmark of searches: what it counts, on a world whose truth is given."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.prediction.truth import LOADS, kv_blocks, run_truth, traffic, unlike
from bench.tuning.pages import windows_of_pages
from bench.tuning.peers import Oracle, play
from bench.tuning.rules import RuleSearch, nearest
from bench.tuning.score import pairs_right
from bench.tuning.world import Scored, World
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals
from flettner.tools.tuning.searches import GridSearch, Point, Tried


def world(*attainments: float) -> World:
    """Return a point for each; canaries measure the truth."""
    scored = tuple(Scored(attainment=attainment, requests=100) for attainment in attainments)
    return World(
        name="given",
        goals=Goals(ttft_s=1.0),
        limits=(EngineLimits(kv_blocks=100),) * len(attainments),
        points=tuple({"max_num_seqs": at} for at in range(len(attainments))),
        rate=1.0,
        truths=[attainments, attainments],
        trials=dict(enumerate(scored)),
        load=LOADS[0],
        seed=1,
        gpu="4090-8b",
    )


class Never:
    def propose(self, tried: Sequence[Tried]) -> Point | None:  # noqa: ARG002 - the port
        return None


def test_regret_falls_with_a_canary_that_is_better_and_misses_are_counted() -> None:
    given = world(0.5, 0.2, 0.9, 0.91)
    played = play(given, 0, GridSearch(given.points))

    assert played.regret == pytest.approx((0.41, 0.41, 0.01, 0.01))
    assert played.exposed == pytest.approx(30.0)
    assert played.canaries == 3


def test_a_search_that_proposes_nothing_exposes_nobody() -> None:
    played = play(world(0.5, 0.9), 0, Never())

    assert played.regret == pytest.approx((0.4,))
    assert (played.exposed, played.canaries) == (0.0, 0)


def test_scrapes_show_the_steps_and_the_time_of_the_log() -> None:
    gpu = unlike("4090-8b", 1)
    limits = EngineLimits(kv_blocks=kv_blocks(gpu), enable_prefix_caching=False)
    recording = run_truth(traffic(LOADS[1], 1.0, 60.0, 1), gpu, limits, 1)
    windows = windows_of_pages(recording, limits, 3.0)
    busy_s = sum(step.seconds for step in recording.steps)

    assert 0.4 * busy_s < sum(step.seconds for step in windows) < 1.05 * busy_s
    each = busy_s / len(recording.steps)
    assert sum(step.seconds for step in windows) / sum(step.steps for step in windows) == pytest.approx(
        each, rel=0.2
    )


def test_the_truth_is_the_mean_of_several_loads() -> None:
    given = replace(world(0.1, 0.2, 0.3), truths=[(0.1, 0.2, 0.6), (0.3, 0.4, 0.8)])
    unsure = replace(given, truths=[(0.1, 0.2, 0.3), (0.1, 0.3, 0.2)])

    assert given.truth == pytest.approx([0.2, 0.3, 0.7])
    assert given.best == pytest.approx(0.7)
    assert given.spearman_of_truth == pytest.approx(1.0)
    assert unsure.spearman_of_truth == pytest.approx(2 / 3)  # 0.5 of each half


def test_only_pairs_that_truly_differ_count() -> None:
    truth = (0.50, 0.51, 0.60, 0.70)

    assert pairs_right(truth, (0.2, 0.1, 0.3, 0.4), 0.02) == pytest.approx(1.0)
    assert pairs_right(truth, (0.2, 0.1, 0.3, 0.3), 0.02) == pytest.approx(0.9)  # a tie of five pairs
    assert pairs_right(truth, (0.4, 0.3, 0.2, 0.1), 0.02) == pytest.approx(0.0)
    assert pairs_right((0.50, 0.51), (1.0, 0.0), 0.02) is None


def test_a_change_of_the_rules_becomes_the_nearest_point_on_its_way() -> None:
    points = [{"max_num_seqs": seqs, "max_num_batched_tokens": 2048} for seqs in (8, 64, 256)]

    assert nearest(points[0], {"max_num_seqs": 10}, points) == points[1]
    assert nearest(points[0], {"max_num_seqs": 200}, points) == points[2]
    assert nearest(points[2], {"max_num_seqs": 300}, points) == points[2]


def test_the_rules_raise_the_cap_that_requests_wait_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing where the canary gained nothing, as the same readings ask for the same change."""
    monkeypatch.setattr("bench.tuning.rules.LEARN_S", 180.0)
    limits = EngineLimits(
        kv_blocks=kv_blocks(unlike("4090-8b", 1)), max_num_seqs=4, enable_prefix_caching=False
    )
    small = world(0.1, 0.2)
    given = replace(
        small,
        limits=(limits, replace(limits, max_num_seqs=64)),
        points=tuple({"max_num_seqs": seqs, "max_num_batched_tokens": 2048} for seqs in (4, 64)),
        goals=Goals(ttft_s=1.0, itl_s=0.1),
        rate=2.0,
    )
    rules, (own, more) = RuleSearch(world=given, least_gain=0.02), given.points

    assert rules.propose([Tried(point=own, goodput=0.1)]) == more
    assert rules.propose([Tried(point=own, goodput=0.1), Tried(point=more, goodput=0.1)]) is None


def test_the_oracle_tries_the_best_point_alone() -> None:
    played = play(world(0.1, 0.5, 0.3), 0, Oracle(world(0.1, 0.5, 0.3)))

    assert played.regret == pytest.approx((0.4, 0.0))
    assert played.canaries == 1
