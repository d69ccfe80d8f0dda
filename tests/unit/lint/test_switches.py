"""G1, G2, G3, A1, X1 and P3 from the flags alone."""

import pytest

from flettner.lint.rules.switches import LINTS
from tests.support.lint_cases import MAMBA_9B, case, findings, rules

SERVE = "vllm serve Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("flags", "rule", "to"),
    [
        ("--enforce-eager", "G1", {"enforce_eager": False}),
        ("-O0", "G3", {"optimization_level": None}),
        ("-O1", "G3", {"optimization_level": None}),
        ("-cc.cudagraph_mode=NONE", "G3", {"compilation_config.cudagraph_mode": None}),
        ("""-cc '{"cudagraph_mode":"NONE"}'""", "G3", {"compilation_config": None}),
        (
            """-cc '{"cudagraph_mode":"NONE","mode":3}'""",
            "G3",
            {"compilation_config": '{"mode":3}'},
        ),
        ("--max-num-seqs 512 --max-cudagraph-capture-size 64", "G2", {"max_cudagraph_capture_size": None}),
        ("--max-num-seqs 128 --cudagraph-capture-sizes 1 2 4 8", "G2", {"cudagraph_capture_sizes": None}),
        ("--no-async-scheduling", "A1", {"async_scheduling": None}),
        ("--no-enable-chunked-prefill", "P3", {"enable_chunked_prefill": None}),
    ],
)
def test_restores_a_flag_set_to_its_slow_value(flags: str, rule: str, to: dict[str, object]) -> None:
    (found,) = findings(LINTS, case(f"{SERVE} {flags}"))
    assert (found.rule, found.to) == (rule, to)
    assert found.severity != "info"


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--no-enforce-eager -O2 -O3",
        "-cc.cudagraph_mode=FULL_AND_PIECEWISE",
        "-cc.cudagraph_mode=PIECEWISE --kv-offloading-size 32",
        "--max-num-seqs 1024",
        "--max-num-seqs 1024 --max-cudagraph-capture-size 512",
        "--no-async-scheduling --pipeline-parallel-size 2",
        "--no-async-scheduling --spec-method ngram",
        "--async-scheduling --spec-method eagle3",
        "--async-scheduling --spec-method deepseek_mtp",
        "--runner pooling --enforce-eager --no-enable-prefix-caching --no-enable-chunked-prefill",
        "--enable-prefix-caching --enable-chunked-prefill",
    ],
)
def test_reports_nothing_for_defaults_and_automatic_values(flags: str) -> None:
    assert not findings(LINTS, case(f"{SERVE} {flags}"))


@pytest.mark.parametrize(
    ("flags", "rule"),
    [("--no-enable-prefix-caching", "X1"), ("-cc.cudagraph_mode=PIECEWISE", "G3")],
)
def test_what_recipes_turn_off_on_purpose_is_a_remark(flags: str, rule: str) -> None:
    (found,) = findings(LINTS, case(f"{SERVE} {flags}"))
    assert (found.rule, found.severity) == (rule, "info")
    assert "vllm-project/recipes" in found.source or rule == "G3"


@pytest.mark.parametrize("profile", ["chat", "rag", "api"])
def test_prompts_that_begin_alike_want_prefix_caching(profile: str) -> None:
    (found,) = findings(LINTS, case(f"{SERVE} --no-enable-prefix-caching", profile=profile))
    assert (found.rule, found.severity, found.to) == ("X1", "warning", {"enable_prefix_caching": None})


def test_eager_mode_is_one_finding() -> None:
    assert rules(findings(LINTS, case(f"{SERVE} --enforce-eager -O0"))) == ["G1"]


def test_published_gain_is_not_promised() -> None:
    (found,) = findings(LINTS, case(f"{SERVE} --enforce-eager"))
    assert "reported" in found.expects
    assert "not promised" in found.expects


def test_keeps_prefix_caching_disabled_for_a_hybrid_model() -> None:
    assert not findings(LINTS, case(f"{SERVE} --no-enable-prefix-caching", model=MAMBA_9B))


def test_does_not_propose_async_scheduling_before_it_was_the_default() -> None:
    assert not findings(LINTS, case(f"{SERVE} --no-async-scheduling", version="0.12.0"))
