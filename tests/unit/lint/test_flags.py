"""V1: flags that this version of vLLM refuses."""

import pytest

from flettner.lint.rules.flags import LINTS
from flettner.lint.rules.hardware import LINTS as HARDWARE
from flettner.rules.table import ORDER
from tests.support.lint_cases import LLAMA_8B, case, dense, findings, improved


@pytest.mark.parametrize(
    ("flags", "why", "better"),
    [
        ("--num-scheduler-steps 8", "vLLM 0.11 and later do not know --num-scheduler-steps", ""),
        (
            "--swap-space 16 --max-num-seqs 64",
            "vLLM 0.18 and later do not know --swap-space",
            "--max-num-seqs 64",
        ),
        (
            "--cuda-graph-sizes 1 2",
            "vLLM 0.13 and later do not know --cuda-graph-sizes",
            "--cudagraph-capture-sizes 1 2",
        ),
        ("--watchdog-config {}", "does not know --watchdog-config yet: it came with 0.33", ""),
        ("--max-num-sequences 8", "did you mean --max-num-seqs?", "--max-num-seqs 8"),
        ("--context-length 8192", "did you mean --max-model-len?", "--max-model-len 8192"),
        ("--lora-path a/b", "did you mean --lora-modules?", ""),
        ("--gpu-memory-utilization 1.5", "is at most 1, not 1.5", ""),
        ("--max-num-seqs 8k", "is a whole number, not 8k", "--max-num-seqs 8000"),
        ("--scheduling-policy lifo", "is one of fcfs, priority, not lifo", ""),
        (
            "--max-num-seqs 128 --max-num-batched-tokens 64",
            "is below",
            "--max-num-seqs 128 --max-num-batched-tokens 128",
        ),
    ],
)
def test_names_and_fixes_a_refused_flag(flags: str, why: str, better: str) -> None:
    command = f"vllm serve m {flags}"

    reported = findings(LINTS, case(command))

    assert [(found.rule, found.severity) for found in reported] == [("V1", "error")]
    assert why in reported[0].why
    assert improved(command, reported) == f"vllm serve m {better}".strip()
    assert not findings(LINTS, case(improved(command, reported)))


@pytest.mark.parametrize(
    ("flags", "version"),
    [
        ("", "0.32.0"),
        ("--max_num_seqs=8 -tp 2 --no-enable-prefix-caching -O3 -cc.mode=3", "0.32.0"),
        ("--swap-space 16", "0.17.0"),
        ("--max-num-active-seqs 8", "0.31.0"),
        ("--max-num-active-seqs 8", ""),
        ("--watchdog-config {}", "0.33.0"),
        ("--tensor-parallel 2", "0.32.0"),
        ("--moe-backend brand_new", "0.33.0"),
        ("--kv-cache-dtype fp8 --max-model-len auto", "0.32.0"),
    ],
)
def test_keeps_flags_that_the_version_accepts(flags: str, version: str) -> None:
    assert not findings(LINTS, case(f"vllm serve m {flags}", version=version))


def test_unknown_version_gets_only_a_warning() -> None:
    reported = findings(LINTS, case("vllm serve m --swap-space 4 --no-such-flag-ever", version=""))

    assert [found.severity for found in reported] == ["warning", "warning"]


def test_reports_a_flag_newer_than_the_version() -> None:
    (found,) = findings(LINTS, case("vllm serve m --max-num-active-seqs 8", version="0.30.0"))

    assert (found.severity, found.to) == ("error", {"max_num_active_seqs": None})
    assert "upgrade to 0.31" in found.expects


def test_reports_an_ignored_variable() -> None:
    fbgemm = "VLLM_USE_FBGEMM=1"

    (found,) = findings(LINTS, case("vllm serve m", env=fbgemm))

    assert found.env == {"VLLM_USE_FBGEMM": None}
    assert found.why == "vLLM 0.24 and later ignore VLLM_USE_FBGEMM. Write --linear-backend fbgemm."
    assert not findings(LINTS, case("vllm serve m", env=fbgemm, version="0.14.0"))
    assert not findings(LINTS, case("vllm serve m", env="VLLM_TUNED_CONFIG_FOLDER=/tuned"))


def test_attention_backend_variable_is_left_to_its_own_rules() -> None:
    asked = case("vllm serve m", env="VLLM_ATTENTION_BACKEND=FLASHINFER")

    assert not findings(LINTS, asked)
    assert [found.rule for found in findings(HARDWARE, asked)] == ["H3"]


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--dtype", "--served-model-name"])
def test_reports_a_flag_without_its_value(flag: str) -> None:
    (found,) = findings(LINTS, case(f"vllm serve m {flag} --enforce-eager"))

    assert found.why == f"{flag} is not followed by a value"


def test_shell_variable_is_not_an_error() -> None:
    (found,) = findings(LINTS, case("vllm serve m --max-num-seqs '$SEQS'"))

    assert (found.severity, dict(found.to)) == ("info", {})


def test_notes_disabled_metrics() -> None:
    (found,) = findings(LINTS, case("vllm serve m --disable-log-stats"))

    assert (found.severity, found.klass) == ("info", "note")


def test_refuses_or_discourages_a_context_beyond_the_models_limit() -> None:
    flags = f"vllm serve m --max-model-len {2 * 131072}"

    (refused,) = findings(LINTS, case(flags, model=LLAMA_8B))
    (forced,) = findings(LINTS, case(flags, model=LLAMA_8B, env="VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"))

    assert (refused.severity, refused.to) == ("error", {"max_model_len": 131072})
    assert (forced.severity, dict(forced.to)) == ("warning", {})
    assert "nan" in forced.risks


def test_merges_a_moved_flag_into_the_existing_json() -> None:
    asked = case("""vllm serve m --guided-decoding-backend xgrammar --structured-outputs-config '{"a": 1}'""")

    (found,) = findings(LINTS, asked)

    json = '{"a": 1, "backend": "xgrammar"}'
    assert found.to == {"guided_decoding_backend": None, "structured_outputs_config": json}


def test_converts_old_rope_scaling_with_its_length() -> None:
    yarn = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'
    command = f"vllm serve m --rope-scaling '{yarn}' --max-model-len 131072"
    model = dense("Qwen/Qwen3-8B", 8.2, max_len=40960)

    better = improved(command, findings(LINTS, case(command, model=model)))

    assert f"--hf-overrides.rope_scaling '{yarn}'" in better
    assert "--hf-overrides.max_position_embeddings 131072" in better
    assert not findings(LINTS, case(better, model=model))


def test_merges_the_two_draft_model_flags() -> None:
    command = "vllm serve m --speculative-model small --num-speculative-tokens 5"

    (found,) = findings(LINTS, case(command))

    json = '{"model": "small", "num_speculative_tokens": 5}'
    assert improved(command, [found]) == f"vllm serve m --speculative-config '{json}'"
    (alone,) = findings(LINTS, case("vllm serve m --num-speculative-tokens 5"))
    assert not alone.to


@pytest.mark.parametrize(
    ("task", "runner"), [("embed", "pooling"), ("classify", "pooling"), ("generate", "generate")]
)
def test_converts_a_task_to_a_runner(task: str, runner: str) -> None:
    (found,) = findings(LINTS, case(f"vllm serve m --task {task}"))

    assert found.to == {"task": None, "runner": runner}


def test_refused_flag_ranks_first() -> None:
    """See the order of the rules: nothing outranks what keeps a server from starting."""
    first = next(band for band in ORDER if "V1" in band.rules)
    assert next(iter(first.rules)) == "V1"
