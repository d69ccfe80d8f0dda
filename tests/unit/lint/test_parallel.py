"""D1 to D5: the layout of the model on the GPUs."""

from dataclasses import replace

import pytest

from flettner.lint.rules.parallel import LINTS
from flettner.vllm_facts.serve_config import GpuModel, Model
from flettner.vllm_facts.sizing import parallel_layouts
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.sizing.effective_flags import Layout, layout
from tests.support.lint_cases import (
    A100_40,
    DEEPSEEK_R1,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    QWEN_2B,
    QWEN_7B_AWQ,
    case,
    dense,
    findings,
    rules,
)

L4 = GpuModel(name="L4", capability=(8, 9), memory_gib=22.49, link="pcie")
A100_PCIE = GpuModel(name="A100 80GB", capability=(8, 0), memory_gib=80.0, link="pcie")
QWEN_14B = dense("Qwen/Qwen2.5-14B-Instruct", 14.8, layers=48, hidden_size=5120, heads=40)
PCIE_ONLY = ("Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.",)


def serve(flags: str) -> str:
    return f"vllm serve some/model --max-model-len 8192 {flags}"


def test_small_model_on_four_gpus_becomes_four_engines_on_any_gpu() -> None:
    (found,) = findings(LINTS, case(serve("-tp 4"), model=QWEN_2B))
    assert (found.rule, found.severity, found.klass) == ("D1", "warning", "gated")
    assert found.to == {"tensor_parallel_size": 1, "data_parallel_size": 4}


def test_reports_the_arithmetic_for_a_larger_model_that_fits_one_gpu() -> None:
    (found,) = findings(LINTS, case(serve("-tp 2"), model=LLAMA_8B, card=H100))
    assert (found.rule, found.severity) == ("D1", "info")
    assert "GiB of weights" in found.why
    (found,) = findings(LINTS, case(serve("-tp 2"), model=LLAMA_8B, card=L40S))
    assert (found.rule, found.severity) == ("D1", "warning")


def test_keeps_engines_started_by_another_launcher() -> None:
    flags = "-tp 2 -dp 2 --data-parallel-rank 0"
    (found,) = findings(LINTS, case(serve(flags), model=QWEN_2B))
    assert not found.to


def test_replicas_keep_the_number_of_gpus() -> None:
    (found,) = findings(LINTS, case(serve("-tp 2 -dp 2"), model=QWEN_2B, gpus=4))
    assert found.to == {"tensor_parallel_size": 1, "data_parallel_size": 4}


@pytest.mark.parametrize(
    ("billions", "tp", "reported", "to"),
    [
        (14.8, 8, "D2", 2),
        (14.8, 2, "", None),
        (32.8, 8, "D2", 4),
        (70.6, 4, "", None),
        (70.6, 8, "D2", 4),
        (405.9, 8, "", None),
    ],
)
def test_applies_the_size_ladder_without_a_known_gpu(
    billions: float, tp: int, reported: str, to: int
) -> None:
    model = dense("x", billions, heads=64, hidden_size=8192)
    found = findings(LINTS, case(serve(f"-tp {tp}"), model=model))
    assert rules(found) == ([reported] if reported else [])
    assert all(one.to == {"tensor_parallel_size": to, "data_parallel_size": tp // to} for one in found)


def test_model_that_does_not_fit_gets_the_smallest_sufficient_number_of_gpus() -> None:
    (found,) = findings(LINTS, case(serve(""), model=LLAMA_70B, card=H200, gpus=8))
    assert (found.rule, found.severity, found.to) == ("D2", "error", {"tensor_parallel_size": 2})
    (found,) = findings(LINTS, case(serve("-tp 2 -dp 4"), model=LLAMA_70B, card=A100_40, gpus=8))
    assert found.to == {"tensor_parallel_size": 8, "data_parallel_size": 1}
    (found,) = findings(LINTS, case(serve(""), model=LLAMA_70B, card=H200, gpus=1))
    assert not found.to


def test_keeps_a_required_split() -> None:
    assert not findings(LINTS, case(serve("-tp 4"), model=LLAMA_70B, card=H100, gpus=4))
    assert not findings(LINTS, case(serve(""), model=LLAMA_8B, card=H100))
    assert not findings(LINTS, case(serve("-tp 2"), model=MIXTRAL, card=H100))
    assert not findings(LINTS, case(serve("-tp 8")))


@pytest.mark.parametrize(("tp", "engines"), [(3, 1), (6, 3), (7, 3), (5, 2)])
def test_indivisible_heads_become_engines_of_the_ladder_size(tp: int, engines: int) -> None:
    (found,) = findings(LINTS, case(serve(f"-tp {tp}"), model=LLAMA_8B))
    to = {"tensor_parallel_size": 2} | ({"data_parallel_size": engines} if engines > 1 else {})
    assert (found.rule, found.severity, found.to) == ("D3", "error", to)
    assert "32 attention heads" in found.why


def test_tries_no_more_widths_than_the_model_has_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def count(model: Model | None, tp: int) -> str:
        tried.append(tp)
        return why_indivisible(model, tp)

    monkeypatch.setattr(parallel_layouts, "why_indivisible", count)
    (found,) = findings(LINTS, case(serve("-tp 3000001"), model=LLAMA_8B))
    assert found.to["tensor_parallel_size"] == 2
    assert len(tried) < 1000


def test_seven_gpus_divide_28_heads_but_not_their_four_kv_heads() -> None:
    assert "KV heads" in why_indivisible(QWEN_7B_AWQ, 7)
    assert not why_indivisible(QWEN_7B_AWQ, 4)
    assert not why_indivisible(None, 7)
    assert not why_indivisible(DEEPSEEK_R1, 8)


def test_refuses_more_gpus_than_a_single_host_has() -> None:
    (found,) = findings(LINTS, case(serve("-tp 8"), model=LLAMA_70B, card=H100, gpus=4))
    assert (found.rule, found.to) == ("D3", {"tensor_parallel_size": 4})
    for flags in ("-tp 8 --nnodes 2", "-tp 8 --distributed-executor-backend ray"):
        assert "D3" not in rules(findings(LINTS, case(serve(flags), model=LLAMA_70B, card=H100, gpus=4)))


def test_pipeline_within_a_host_becomes_tensor_parallel_with_nvlink() -> None:
    (found,) = findings(LINTS, case(serve("-tp 2 -pp 2"), model=LLAMA_70B, card=H100, gpus=4))
    assert (found.rule, found.severity) == ("D4", "warning")
    assert found.to == {"tensor_parallel_size": 4, "pipeline_parallel_size": 1}


@pytest.mark.parametrize("flags", ["-tp 8 -pp 2 --nnodes 2", "-pp 2 --distributed-executor-backend ray"])
def test_keeps_a_pipeline_between_hosts(flags: str) -> None:
    assert "D4" not in rules(findings(LINTS, case(serve(flags), model=LLAMA_70B, card=H100, gpus=8)))


def test_keeps_a_pipeline_without_nvlink_or_of_an_odd_size() -> None:
    assert "D4" not in rules(findings(LINTS, case(serve("-pp 4"), model=LLAMA_70B, card=L40S, gpus=4)))
    assert "D4" not in rules(findings(LINTS, case(serve("-pp 3"), model=LLAMA_70B, card=H100, gpus=3)))


def test_tensor_parallel_over_pcie_becomes_engines_or_a_pipeline() -> None:
    reported = findings(LINTS, case(serve("-tp 4"), model=QWEN_2B, card=L40S, gpus=4))
    assert rules(reported) == ["D1", "D5"]
    assert reported[0].to == reported[1].to == {"tensor_parallel_size": 1, "data_parallel_size": 4}
    (found,) = findings(LINTS, case(serve("-tp 4"), model=LLAMA_70B, card=L40S, gpus=4))
    assert (found.rule, found.to) == ("D5", {"tensor_parallel_size": 1, "pipeline_parallel_size": 4})


def test_pipeline_for_throughput_is_only_a_note() -> None:
    asked = case(serve("-tp 4"), model=LLAMA_70B, card=L40S, gpus=4)
    (found,) = findings(LINTS, asked)
    assert (found.severity, found.to["pipeline_parallel_size"]) == ("info", 4)
    for hurried in (replace(asked, profile="chat"), replace(asked, concurrency=4.0)):
        (found,) = findings(LINTS, hurried)
        assert (found.rule, found.severity, dict(found.to)) == ("D5", "info", {})


def test_reads_the_gpu_links_from_the_log() -> None:
    reported = findings(LINTS, case(serve("-tp 4"), model=QWEN_2B, log=PCIE_ONLY))
    assert rules(reported) == ["D1", "D5"]
    assert "seen in the log" in reported[1].why


def test_custom_all_reduce_is_available_on_two_gpus_or_nvlink() -> None:
    assert "D5" not in rules(findings(LINTS, case(serve("-tp 2"), model=LLAMA_70B, card=L40S)))
    assert "D5" not in rules(findings(LINTS, case(serve("-tp 4"), model=LLAMA_70B, card=H100)))
    assert "D5" not in rules(findings(LINTS, case(serve("-tp 4"), model=LLAMA_70B)))


def test_uses_idle_gpus_before_shortening_the_context() -> None:
    (found,) = findings(LINTS, case("vllm serve x -tp 2", model=LLAMA_70B, card=H100, gpus=8))
    assert (found.rule, found.to) == ("D2", {"tensor_parallel_size": 4})
    assert not findings(LINTS, case("vllm serve x -tp 2", model=LLAMA_70B, card=H100, gpus=2))


def test_model_on_many_pcie_gpus_gets_a_pipeline_and_settles() -> None:
    asked = case(serve(""), model=LLAMA_70B, card=L40S, gpus=4)
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.to) == ("D2", {"pipeline_parallel_size": 4})
    assert not findings(LINTS, replace(asked, setting={**asked.setting, **found.to}))


QWEN_7B = dense("Qwen/Qwen2.5-7B-Instruct", 7.6, layers=28, hidden_size=3584, heads=28, kv_heads=4)


@pytest.mark.parametrize(
    ("model", "card", "flags", "gpus", "reported", "tp", "pp", "dp"),
    [
        (QWEN_7B, L4, "-tp 4", 4, ["D1", "D5"], 1, 1, 4),  # a nominal 7B model that fits one GPU
        (QWEN_7B, L4, "-tp 2", 4, ["D1"], 1, 1, 4),  # and the idle GPUs with it
        (LLAMA_8B, L4, "-tp 4 --max-model-len 131072", 4, ["D2", "D5"], 2, 1, 2),
        (QWEN_14B, L40S, "-tp 4", 4, ["D1", "D5"], 1, 1, 4),
        (
            LLAMA_70B,
            L40S,
            "-tp 8",
            8,
            ["D5"],
            1,
            8,
            1,
        ),  # on four GPUs the weights would fill nearly all memory
        (LLAMA_8B, H100, "-tp 16", 8, ["D3"], 1, 1, 8),  # too many GPUs and too wide, fixed at once
        (LLAMA_8B, H100, "-tp 7 --max-num-seqs 64", 8, ["D3"], 1, 1, 8),
        (LLAMA_8B, H100, "-tp 4 -dp 4", 8, ["D3"], 1, 1, 8),
        (LLAMA_8B, H100, "-tp 2 -pp 2", 4, ["D1"], 1, 1, 4),  # nor a pipeline
    ],
)
def test_one_change_sets_the_smallest_split_and_the_number_of_engines(
    model: Model, card: GpuModel, flags: str, gpus: int, reported: list[str], tp: int, pp: int, dp: int
) -> None:
    asked = case(serve(flags), model=model, card=card, gpus=gpus)
    found = findings(LINTS, asked)
    assert rules(found) == reported
    assert all(one.to == found[0].to for one in found)
    after = replace(asked, setting={**asked.setting, **found[0].to})
    assert layout(after) == Layout(tp=tp, pp=pp, dp=dp)
    assert not findings(LINTS, after)


def test_change_that_makes_the_server_start_is_complete() -> None:
    """With fewer GPUs than requested, both the layout and a shorter context are reported."""
    asked = case("vllm serve x -tp 8", model=LLAMA_70B, card=H100, gpus=2)
    (found,) = findings(LINTS, asked)
    assert found.rule == "D3"
    assert found.to["tensor_parallel_size"] == 2
    assert found.to["max_model_len"] < 131072  # type: ignore[operator]
    assert not findings(LINTS, replace(asked, setting={**asked.setting, **found.to}))


def test_raises_a_share_too_low_to_start_before_adding_gpus() -> None:
    asked = case(serve("--gpu-memory-utilization 0.6"), model=LLAMA_8B, card=L4, gpus=4)
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.severity, found.to) == ("D2", "error", {"gpu_memory_utilization": 0.9})


def test_names_idle_gpus() -> None:
    (found,) = findings(LINTS, case(serve(""), model=LLAMA_70B, card=H200, gpus=8))
    assert "6 of 8 GPUs stay free: --data-parallel-size 4 would use 6" in found.expects
    found = findings(LINTS, case(serve("-tp 4"), model=MIXTRAL, card=A100_PCIE, gpus=4))[-1]
    assert (found.rule, found.to) == ("D5", {"tensor_parallel_size": 2})
    assert "2 of 4 GPUs stay free, for 1 more server" in found.expects


def test_reports_an_unfixable_layout_without_a_change_and_after_fixable_ones() -> None:
    (found,) = findings(LINTS, case(serve("-tp 4"), model=LLAMA_70B, card=L4, gpus=4))
    assert (found.rule, found.severity, dict(found.to)) == ("D2", "error", {})


def test_reduces_engines_to_the_gpus_of_the_host() -> None:
    (found,) = findings(LINTS, case("vllm serve x -tp 4 -dp 4", gpus=8))
    assert (found.rule, found.to) == ("D3", {"data_parallel_size": 2})
    assert not findings(LINTS, case("vllm serve x -tp 4 -dp 4 --data-parallel-size-local 2", gpus=8))
    assert not findings(LINTS, case("vllm serve x -tp 4 -dp 4 --data-parallel-rank 0", gpus=8))
