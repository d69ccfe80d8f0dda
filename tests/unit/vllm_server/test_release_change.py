"""The flags of a server for another release, in the preflight of its upgrade."""

import pytest

from flettner.actuators.vllm.release_change import find_release_change
from flettner.vllm_facts.values import Setting

OLD: Setting = {"model": "Qwen/Qwen3-8B", "max_num_seqs": 8, "cuda_graph_sizes": 4}


def test_a_renamed_flag_is_written_as_the_new_release_has_it() -> None:
    change = find_release_change(OLD, {}, "0.12.0", "0.33.0+cpu")

    assert change.problem == ""
    assert change.resolved == {"cuda_graph_sizes": (4, None), "cudagraph_capture_sizes": (None, 4)}
    assert change.apply(OLD) == {
        "model": "Qwen/Qwen3-8B",
        "max_num_seqs": 8,
        "cudagraph_capture_sizes": 4,
    }
    assert any("has no --cuda-graph-sizes" in note for note in change.notes)
    assert any("other defaults: " in note and "--upgrade-to 0.33.0`" in note for note in change.notes)


def test_a_flag_that_nothing_replaces_is_a_problem() -> None:
    change = find_release_change({**OLD, "enable_prompt_adapter": True}, {}, "0.9.0", "0.33.0")

    assert "--enable-prompt-adapter" in change.problem
    assert "stay with vLLM 0.9.0" in change.problem


def test_variables_that_are_not_of_vllm_are_not_read() -> None:
    env = {"SECRET_TOKEN": "hunter2", "VLLM_USE_V1": "1"}
    change = find_release_change(OLD, env, "0.9.0", "0.33.0")

    assert any("ignores VLLM_USE_V1" in note for note in change.notes)
    assert "hunter2" not in str(change)


@pytest.mark.parametrize(
    ("flag", "variable", "value", "old", "new"),
    [
        ("attention_backend", "VLLM_ATTENTION_BACKEND", "FLASHINFER", "0.32.0", "0.10.0"),
        ("all2all_backend", "VLLM_ALL2ALL_BACKEND", "deepep_low_latency", "0.33.0", "0.10.0"),
    ],
)
def test_a_flag_that_an_older_release_has_as_a_variable_goes_there(
    flag: str, variable: str, value: str, old: str, new: str
) -> None:
    change = find_release_change({**OLD, flag: value}, {}, old, new)

    assert change.problem == ""
    assert change.flags[flag] == (value, None)
    assert change.start == {f"env.{variable}": value}
    assert change.resolved[f"env.{variable}"] == (None, value)
    assert flag not in change.apply({**OLD, flag: value})


def test_a_variable_that_the_release_has_as_a_flag_stays_for_the_way_back() -> None:
    change = find_release_change(OLD, {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, "0.10.0", "0.33.0")

    assert change.flags["attention_backend"] == (None, "FLASHINFER")
    assert change.start == {}


@pytest.mark.parametrize(
    ("gpu", "shown"),
    [("NVIDIA RTX PRO 6000 Blackwell", True), ("H100 80GB", False), ("cpu", False), ("", False)],
)
def test_a_regression_of_a_gpu_is_shown_on_that_gpu(gpu: str, shown: bool) -> None:
    setting: Setting = {"model": "deepseek-ai/DeepSeek-V4-Flash"}

    change = find_release_change(setting, {}, "0.22.0", "0.24.0", gpu)

    assert any("47174" in note for note in change.notes) is shown, change.notes


def test_the_same_release_and_one_that_is_not_known_change_no_flag() -> None:
    assert find_release_change(OLD, {}, "0.12.0", "0.12.0").notes == ()

    unknown = find_release_change(OLD, {}, "0.12.0", "9.1.0")

    assert (unknown.resolved, unknown.problem) == ({}, "")
    assert "were not compared" in unknown.notes[0]


def test_a_release_that_cannot_run_the_model_is_a_problem() -> None:
    change = find_release_change({"model": "Qwen/Qwen3.5-35B-A3B"}, {}, "0.20.0", "0.14.0")

    assert "vLLM 0.14.0 does not implement Qwen3_5MoeForConditionalGeneration" in change.problem
    assert "vLLM 0.17.0 or newer" in change.problem
