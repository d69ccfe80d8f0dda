"""The sweep of real vLLM: the figures, from settings that a known law has measured."""

from dataclasses import replace

import pytest

from bench.real_sweep.__main__ import (
    PAIRS,
    Row,
    average,
    compare,
    describe,
    draw_traffic,
    ordered,
    with_pair,
)
from performance_model.engine import Engine
from performance_model.engine_limits import EngineLimits
from performance_model.outcome import Goals, measure
from performance_model.step_law import StepLaw, UncertainLaw

LAW = StepLaw(step_us=4_000, token_us=390.0, sequence_us=1_100)
LIMITS = EngineLimits(kv_blocks=4000, max_num_seqs=64)
TRAFFIC = draw_traffic(5.0, 30.0, seed=1)
GOALS = Goals(ttft_s=1.0, itl_s=0.03)


def measured(law: StepLaw) -> list[Row]:
    runs = [(pair, Engine(TRAFFIC, law, with_pair(LIMITS, pair)).run()) for pair in ordered(len(PAIRS))]
    found = [(pair, measure(run, GOALS)) for pair, run in runs]
    return [average(pair, one, one) for pair, one in found]


def test_the_law_that_measured_the_settings_ranks_them_and_finds_the_best() -> None:
    found = compare(measured(LAW), TRAFFIC, UncertainLaw(law=LAW), LIMITS, GOALS)

    assert found["spearman"] == pytest.approx(1.0)
    assert found["itl_error_most"] == 0.0
    assert found["after_the_change"] > found["default"]
    assert found["best"] - found["after_the_change"] < 0.05


def test_the_error_of_another_law_shows() -> None:
    slower = UncertainLaw(law=replace(LAW, step_us=2 * LAW.step_us))

    assert compare(measured(LAW), TRAFFIC, slower, LIMITS, GOALS)["itl_error_median"] > 0.1


def test_each_figure_is_printed_beside_its_goal() -> None:
    found = {
        **compare(measured(LAW), TRAFFIC, UncertainLaw(law=LAW, source="the log"), LIMITS, GOALS),
        "spearman": 0.65,
        "itl_error_median": 0.2,
        "change": (64, 256),
        "after_the_change": 0.9,
        "best": 0.96,
        "best_setting": (32, 256),
        "default": 0.75,
        "default_first": 0.72,
        "default_last": 0.78,
    }

    assert describe(found).splitlines() == [
        "the log",
        "  rank correlation of the requests within the objectives: 0.65 (goal: at least 0.7): missed",
        "  time between tokens, median error: 20% (goal: at most 20%): met",
        "  change (64, 256) below the best setting (32, 256): 6.0 points (goal: at most 5): missed",
        "  the default, measured twice, differs by 6.0 points",
    ]
    assert "unknown: all settings are alike (goal" in describe({**found, "spearman": None})


def test_each_setting_is_measured_in_random_order_after_the_default() -> None:
    order = ordered(len(PAIRS))

    assert order[0] == PAIRS[0]
    assert sorted(order) == sorted(PAIRS)
    assert order != list(PAIRS)
    assert len(ordered(5)) == 5


def test_a_setting_has_the_mean_of_both_measurements() -> None:
    found = average(
        (64, 512), {"attainment": 0.8, "itl_mean_s": 0.02}, {"attainment": 1.0, "itl_mean_s": 0.03}
    )

    assert found == {
        "setting": (64, 512),
        "attainment": pytest.approx(0.9),
        "itl_mean_s": pytest.approx(0.025),
        "first": 0.8,
        "last": 1.0,
    }
