"""Speculation counts in tokens: graphs, budgets, and drafts that the log shows to be rejected."""

import pytest

from flettner.lint.fixes import find_fixes, find_fixes_in_rounds
from flettner.lint.rules import all_lints, graph_sizes, memory, speculation, start_errors
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import H100, LLAMA_8B, MIXTRAL, case, findings

DRAFTS = '--speculative-config \'{"method":"eagle3","model":"e","num_speculative_tokens":3}\''
METRICS = (
    "INFO [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 1.00, Accepted throughput: 0.10 "
    "tokens/s, Drafted throughput: 300.00 tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
    "Per-position acceptance rate: 0.001, 0.001, 0.001, Avg Draft acceptance rate: {percent}%"
)


def rules_of(flags: str, version: str = "0.32.0") -> dict[str, dict[str, Value]]:
    config = case(f"vllm serve m --max-model-len 8192 {flags}", model=LLAMA_8B, card=H100, version=version)
    return {
        finding.rule: dict(finding.to)
        for finding in findings((*graph_sizes.LINTS, *memory.LINTS), config)
        if finding.rule in {"G2", "B3"}
    }


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (f"--max-num-seqs 64 --max-cudagraph-capture-size 64 {DRAFTS}", {"G2"}),
        ("--max-num-seqs 64 --max-cudagraph-capture-size 64", set[str]()),
        (f"--max-num-seqs 64 --max-cudagraph-capture-size 256 {DRAFTS}", set[str]()),
        (f"--max-num-seqs 256 --max-num-batched-tokens 768 {DRAFTS}", {"B3"}),
        (f"--max-num-seqs 256 --max-num-batched-tokens 1024 {DRAFTS}", set[str]()),
        ("--max-num-seqs 256 --max-num-batched-tokens 768", set[str]()),
    ],
)
def test_graphs_and_budgets_hold_each_sequence_with_its_drafts(flags: str, found: set[str]) -> None:
    assert rules_of(flags).keys() == found


def test_the_budget_holds_a_full_batch_with_its_drafts() -> None:
    assert rules_of(f"--max-num-seqs 256 --max-num-batched-tokens 768 {DRAFTS}")["B3"] == {
        "max_num_batched_tokens": 1024
    }


@pytest.mark.parametrize(
    ("accepted", "drafted", "percent", "named"),
    [(3, 3000, 0.1, True), (900, 3000, 30.0, False), (0, 9, 0.0, False)],
)
def test_rejected_drafts_in_a_log_are_named(
    accepted: int, drafted: int, percent: float, *, named: bool
) -> None:
    line = METRICS.format(accepted=accepted, drafted=drafted, percent=percent)
    config = case(f"vllm serve m {DRAFTS}", log=(line,))

    fixes = find_fixes_in_rounds(config, all_lints())

    assert ("SD1" in {finding.rule for finding in fixes.findings}) is named
    assert fixes.to == ({"speculative_config": None} if named else {})
    assert not find_fixes(case("vllm serve m", log=(line,)), all_lints()).to


def test_rejected_drafts_come_before_the_gap_between_steps() -> None:
    line = METRICS.format(accepted=0, drafted=2600, percent=0.0)
    config = case(f"vllm serve m --no-async-scheduling {DRAFTS}", log=(line,), model=LLAMA_8B, card=H100)

    fixes = find_fixes(config, all_lints())

    assert fixes.findings[0].rule == "SD1"
    assert "A1" in {lost.what.rule for lost in fixes.outranked}


@pytest.mark.parametrize(
    ("flags", "gpu", "expected"),
    [
        ("-pp 2 --spec-method mtp --spec-tokens 2", "L40S", [("gated", {"spec_method", "spec_tokens"})]),
        ("-pp 2 --spec-method mtp --spec-tokens 2", "H100", [("note", set())]),
        ("-pp 2 --spec-method ngram --spec-tokens 2", "L40S", []),
        ("-tp 2 --spec-method mtp --spec-tokens 2", "L40S", []),
        ("-pp 2", "L40S", []),
    ],
)
def test_drafts_in_a_pipeline_are_weighed_by_its_links(
    flags: str, gpu: str, expected: list[tuple[str, set[str]]]
) -> None:
    config = case(f"vllm serve m {flags}", card=find_gpu(gpu))

    reported = findings(speculation.LINTS, config)

    assert [(each.klass, set(each.to)) for each in reported] == expected


DSPARK = "--spec-method dspark --spec-model org/draft --spec-tokens 7"
DFLASH = '--speculative-config \'{"method":"dflash","model":"org/draft","num_speculative_tokens":7}\''
OWN = "speculative_config.kv_cache_dtype"


@pytest.mark.parametrize(
    ("flags", "version", "changes"),
    [
        (f"--kv-cache-dtype fp8 {DSPARK}", "0.27.0", [{OWN}]),
        (f"--kv-cache-dtype fp8_ds_mla {DFLASH}", "0.26.0", [{"speculative_config"}]),
        (f"--kv-cache-dtype fp8 {DSPARK}", "0.25.0", [set()]),  # the release has no such key
        (f"--kv-cache-dtype fp8 {DSPARK} --speculative-config.kv_cache_dtype bfloat16", "0.27.0", []),
        ("--kv-cache-dtype fp8 --spec-method dspark --spec-model m --spec-tokens 7", "0.27.0", []),  # its own
        (f"--kv-cache-dtype turboquant_k8v4 {DFLASH}", "0.20.0", [set()]),  # on any GPU
        (f"--kv-cache-dtype bfloat16 {DFLASH}", "0.20.0", []),
        (DSPARK, "0.27.0", []),
        ("--kv-cache-dtype fp8 --spec-method mtp --spec-tokens 3", "0.27.0", []),
    ],
)
def test_a_draft_that_drafts_in_parallel_has_a_kv_cache_of_its_own(
    flags: str, version: str, changes: list[set[str]]
) -> None:
    config = case(f"vllm serve m {flags}", card=find_gpu("B300"), version=version)

    reported = findings(speculation.LINTS, config)

    assert [set(each.to) for each in reported] == changes
    assert all("bfloat16" in str(value) for each in reported for value in each.to.values())


def test_a_draft_without_a_backend_in_the_log_gets_a_cache_of_its_own_not_its_target() -> None:
    line = (
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=64, "
        "kv_cache_dtype=fp8_ds_mla, use_mla=False, use_non_causal=True). Reasons: {FLASH_ATTN: "
        "[kv_cache_dtype not supported], TRITON_ATTN: [kv_cache_dtype not supported]}."
    )
    config = case(f"vllm serve m --kv-cache-dtype fp8 {DSPARK}", log=(line,), version="0.27.0")

    (finding,) = findings(start_errors.LINTS, config)

    assert dict(finding.to) == {OWN: "bfloat16"}


def test_drafts_for_which_no_backend_is_left_are_given_up() -> None:
    line = (
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=256, "
        "kv_cache_dtype=auto, use_non_causal=True). Reasons: {FLASH_ATTN: [head_size not supported], "
        "TRITON_ATTN: [non-causal attention not supported]}."
    )
    config = case(f"vllm serve m {DFLASH}", log=(line,), version="0.20.0")

    (finding,) = findings(start_errors.LINTS, config)

    assert dict(finding.to) == {"speculative_config": None}


def test_a_log_of_a_server_that_ran_refutes_that_its_draft_has_no_backend() -> None:
    line = "(EngineCore pid=9) ERROR TimeoutError: RPC call to sample_tokens timed out."
    config = case(f"vllm serve m --kv-cache-dtype fp8 {DSPARK}", card=find_gpu("B300"), log=(line,))

    assert not findings(speculation.LINTS, config)


COUNT = (
    "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 90.0 tokens/s, Running: {n} reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 9.0%"
)


@pytest.mark.parametrize(
    ("running", "accepted", "percent", "named"),
    [(600, 2400, 60.0, True), (4, 2400, 60.0, False), (600, 3900, 97.5, False), (300, 1000, 25.0, True)],
)
def test_drafts_that_cost_more_than_they_bring_at_the_logged_load_are_named(
    running: int, accepted: int, percent: float, named: bool
) -> None:
    line = METRICS.format(accepted=accepted, drafted=4000, percent=percent)
    log = (line, COUNT.format(n=running)) * 3
    flags = '--speculative-config \'{"method":"ngram","num_speculative_tokens":3}\''
    config = case(f"vllm serve m --max-model-len 8192 {flags}", model=LLAMA_8B, card=H100, log=log)
    found = [
        finding
        for finding in findings(speculation.LINTS, config)
        if finding.rule == "SD1" and "run at once" in finding.why
    ]
    assert bool(found) is named
    assert all(finding.to == {"speculative_config": None} for finding in found)


def test_drafts_of_a_mixture_of_experts_and_on_an_unknown_gpu_are_not_priced() -> None:
    line = METRICS.format(accepted=2400, drafted=4000, percent=60.0)
    log = (line, COUNT.format(n=600)) * 3
    for model, card in ((LLAMA_8B, None), (MIXTRAL, H100)):
        config = case(f"vllm serve m {DRAFTS}", model=model, card=card, log=log)
        assert not [each for each in findings(speculation.LINTS, config) if "run at once" in each.why]
