"""The sweep of real vLLM: the figures, from settings that a known law has measured."""

from dataclasses import replace

import pytest

from bench.real_sweep.__main__ import PAIRS, choose_pairs, cut_slices, draw_traffic
from bench.real_sweep.comparison import (
    Row,
    Traffic,
    average,
    compare,
    describe,
    regret_of_halves,
    standard_error,
    with_pair,
)
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals, measure
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.step_law import StepLaw, UncertainLaw

LAW = StepLaw(step_us=4_000, token_us=390.0, sequence_us=1_100)
LIMITS = EngineLimits(kv_blocks=4000, max_num_seqs=64)
TRAFFIC = draw_traffic(5.0, 30.0, seed=1)
PARTS = Traffic(recorded=TRAFFIC, parts=cut_slices(TRAFFIC, 2, 12.0))
GOALS = Goals(ttft_s=1.0, itl_s=0.03)


def measured(law: StepLaw) -> list[Row]:
    return [
        average(
            pair,
            [
                measure(ReplayedScheduler(part, law, with_pair(LIMITS, pair)).run(), GOALS)
                for part in PARTS.parts
            ],
        )
        for pair in choose_pairs(len(PAIRS))
    ]


def test_the_law_that_measured_the_settings_ranks_them_and_finds_the_best() -> None:
    row = compare(measured(LAW), PARTS, UncertainLaw(law=LAW), LIMITS, GOALS)

    assert row["spearman"] == pytest.approx(1.0)
    assert row["itl_error_most"] == 0.0
    assert row["after_the_change"] > row["default"]
    assert row["best"] - row["after_the_change"] < 0.05


def test_the_error_of_another_law_shows() -> None:
    slower = UncertainLaw(law=replace(LAW, step_us=2 * LAW.step_us))

    assert compare(measured(LAW), PARTS, slower, LIMITS, GOALS)["itl_error_median"] > 0.1


def test_each_figure_is_printed_beside_its_goal() -> None:
    row = {
        **compare(measured(LAW), PARTS, UncertainLaw(law=LAW, source="the log"), LIMITS, GOALS),
        "spearman": 0.65,
        "itl_error_median": 0.2,
        "change": (64, 256),
        "after_the_change": 0.9,
        "best": 0.96,
        "best_setting": (32, 256),
        "default": 0.75,
        "regret_of_halves": 0.01,
        "regret_error": 0.025,
    }

    assert describe(row).splitlines() == [
        "the log",
        "  rank correlation of the requests within the objectives: 0.65 (goal: at least 0.7): missed",
        "  time between tokens, median error: 20% (goal: at most 20%): met",
        "  change (64, 256) below the best setting (32, 256): 6.0 points (goal: at most 5): missed",
        "  standard error of that difference: 2.5 points",
        "  with the best setting found in the other half of the rounds: 1.0 points",
    ]
    assert "unknown: all settings are alike (goal" in describe({**row, "spearman": None})


def test_the_default_is_the_first_setting() -> None:
    pairs = choose_pairs(len(PAIRS))

    assert pairs[0] == PAIRS[0]
    assert sorted(pairs) == sorted(PAIRS)
    assert len(choose_pairs(5)) == 5


def test_slices_begin_at_equal_distances_and_end_with_the_traffic() -> None:
    parts = cut_slices(TRAFFIC, 3, 6.0)

    assert len(parts) == 3
    assert all(0 <= request.arrival_s < 6.0 for part in parts for request in part)
    assert parts[0] == tuple(request for request in TRAFFIC if request.arrival_s < 6.0)
    assert len(parts[2]) == sum(request.arrival_s >= TRAFFIC[-1].arrival_s - 6.0 for request in TRAFFIC) - 1


def test_a_setting_has_the_mean_of_all_rounds() -> None:
    row = average(
        (64, 512), [{"attainment": 0.8, "itl_mean_s": 0.02}, {"attainment": 1.0, "itl_mean_s": 0.03}]
    )

    assert row == {
        "setting": (64, 512),
        "attainment": pytest.approx(0.9),
        "itl_mean_s": pytest.approx(0.025),
        "rounds": [0.8, 1.0],
    }


def test_the_regret_of_halves_does_not_count_what_the_best_had_by_chance() -> None:
    lucky, other, chosen = [0.9, 0.7, 0.9, 0.7], [0.7, 0.9, 0.7, 0.9], [0.8, 0.8, 0.8, 0.8]

    assert regret_of_halves([chosen, lucky, other], chosen=0) == pytest.approx(-0.1)
    assert standard_error(lucky, chosen) == pytest.approx(0.1 * (4 / 3) ** 0.5 / 2)
    assert standard_error([0.9], [0.8]) == 0.0
