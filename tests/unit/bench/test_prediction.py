"""Laws fitted to a simulated vLLM: accepted while it stays the same, and good for settings never tried."""

from dataclasses import replace

import pytest

from bench.prediction import advised, coverage
from bench.prediction.exactness import run_world, spearman
from bench.prediction.truth import LOADS, Recording, case_of, kv_blocks, run_truth, traffic, unlike
from flettner.performance_model.acceptance import Acceptance, check_ahead
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.hardware_prior import fit_with_prior
from flettner.performance_model.trace import TraceRequest
from flettner.performance_model.work_windows import timed_windows, windows_of_steps
from flettner.simulator.step_time import StepTime, StepWork
from flettner.vllm_facts.serve_config import ServeConfig

GPU = unlike("4090-8b", 3)
LIMITS = EngineLimits(kv_blocks=kv_blocks(GPU), enable_prefix_caching=False)
TRACE = traffic(LOADS[0], 2.5, 420.0, 3)


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return run_truth(TRACE, GPU, LIMITS, 3)


def check(trace: tuple[TraceRequest, ...], recording: Recording, times: float = 1.0) -> Acceptance:
    """`times`: by how much the last two minutes were slower than recorded, to their observer."""
    served = [
        replace(served, itl_s=served.itl_s * (times if request.arrival_s > 300 else 1.0))
        for request, served in zip(trace, recording.served(), strict=True)
    ]
    stamped = zip(recording.ends_s, recording.steps, strict=True)
    return check_ahead(trace, served, list(timed_windows(stamped, LIMITS.kv_tokens)), LIMITS)


def test_a_law_that_predicts_the_next_windows_is_accepted(recorded: Recording) -> None:
    acceptance = check(TRACE, recorded)

    assert len(acceptance.itl) == len(acceptance.ttft) == 5
    assert acceptance.is_accepted


def test_a_server_that_became_slower_is_not_believed(recorded: Recording) -> None:
    assert not check(TRACE, recorded, times=1.6).is_accepted


def test_too_few_windows_are_not_believed() -> None:
    trace = TRACE[:200]

    assert not check(trace, run_truth(trace, GPU, LIMITS, 3)).is_accepted


def test_settings_that_were_never_tried_are_ranked() -> None:
    """One world; the others are in `python -m bench.prediction`."""
    figures = run_world("4090-8b", LOADS[1], 1)

    assert figures["spearman"] > 0.9
    assert figures["regret_points"] < 1.0
    assert figures["far"]["itl_mean_s"]["p90"] < 0.05
    assert figures["far"]["ttft_p90_s"]["p90"] < 0.20


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_data_sheet_tells_of_the_log_what_a_small_step_costs(seed: int) -> None:
    """Long prompts fill large steps, which hardly show up to which size a step costs nothing more."""
    gpu = unlike("t4-8b-awq", seed)
    limits = EngineLimits(kv_blocks=kv_blocks(gpu), enable_prefix_caching=False)
    recording = run_truth(traffic(LOADS[1], 0.08, 1100.0, seed), gpu, limits, seed)
    rows = list(windows_of_steps(recording.steps, limits.kv_tokens))
    small = StepWork(tokens=260, sequences=5, prefills=1, kv_read=3600, prefill_area=256 * 128)
    truth_s = StepTime(hardware=gpu).seconds(small)

    informed, unknown = (
        fit_with_prior(case, rows, kind="steps", draws=0).law.seconds(260, 5, 3600, 256 * 128)
        for case in (case_of("t4-8b-awq", limits), ServeConfig(setting={}))
    )

    assert informed == pytest.approx(truth_s, rel=0.05)
    assert abs(informed - truth_s) < abs(unknown - truth_s)


def test_rank_correlation_counts_ties() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 1, 2], [5, 5, 9]) == pytest.approx(1.0)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_coverage_counts_each_number_by_what_came() -> None:
    row = {"world": "a", "number": "itl_p90_s", "came": "same", "inside": True, "error": 0.1, "width": 0.2}
    row["pinned"] = False
    pinned = {**row, "came": "later", "inside": False, "pinned": True}
    rows = [row, {**row, "world": "b", "inside": False}, {**row, "came": "later"}, pinned]

    same, later = coverage.summarise(rows)

    assert (same["inside"], same["worlds"], same["predictions"]) == (0.5, 2, 2)
    assert (later["came"], later["inside"]) == ("later", 0.5)
    assert (later["pinned"], later["inside_free"]) == (1, 1)


def test_only_worlds_that_are_flat_or_that_no_setting_cures_count() -> None:
    flat = {"kind": "flat", "own": 0.98, "best": 0.99, "advised": None}
    short = {"kind": "servers", "own": 0.2, "best": 0.5, "advised": None, "servers": 3, "needed": 4}
    rows = [
        flat,
        {**flat, "advised": {"max_num_seqs": 8}},
        {**flat, "own": 0.5},  # not flat
        short,
        {**short, "needed": 5},
        {**short, "servers": None},
        {**short, "best": 0.97},  # a setting is enough
    ]

    assert advised.summarise(rows) == {
        "flat": 2,
        "flat_without_a_change": 1,
        "only_servers_help": 3,
        "says_so": 2,
        "within_one": 1,
    }
