"""H1, H2, H3, E1 and E2: support by the GPU and the build."""

import pytest

from flettner.lint.rules import builds, hardware
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import GpuModel
from tests.support.lint_cases import A10, A100, H100, L40S, LLAMA_8B_AWQ, T4, case, findings, rules

LINTS = (*hardware.LINTS, *builds.LINTS)
GEMMA_1B = find_model("google/gemma-3-1b-it")
SERVE = "vllm serve casperhansen/llama-3-8b-instruct-awq"


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "XFORMERS", "TORCH_SDPA", "FLASHINFER"])
def test_removes_a_backend_unsupported_on_turing(backend: str) -> None:
    (found,) = findings(LINTS, case(f"{SERVE} --attention-backend {backend}", card=T4))
    assert (found.rule, found.severity, found.klass) == ("H1", "error", "gated")
    assert found.to == {"attention_backend": None}
    assert "7.5" in found.why


def test_flashinfer_runs_on_turing_with_the_version_of_the_report() -> None:
    reported = findings(
        LINTS, case(SERVE, env="VLLM_ATTENTION_BACKEND=FLASHINFER", version="0.14.1", card=T4)
    )
    assert rules(reported) == ["H3"]


def test_backend_variable_applies_in_versions_that_read_it() -> None:
    asked = case(SERVE, env="VLLM_ATTENTION_BACKEND=XFORMERS", version="0.14.1", card=T4)
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.env) == ("H1", {"VLLM_ATTENTION_BACKEND": None})


def test_reports_a_backend_variable_that_the_version_ignores() -> None:
    (found,) = findings(LINTS, case(SERVE, env="VLLM_ATTENTION_BACKEND=FLASH_ATTN", card=H100))
    assert (found.rule, found.severity) == ("H3", "info")
    assert "is ignored by vLLM 0.32.0 (it reads --attention-backend)" in found.why
    (found,) = findings(LINTS, case(SERVE, env="VLLM_ATTENTION_BACKEND=FLASH_ATTN", card=T4))
    assert (found.rule, found.severity) == ("H1", "warning")
    assert "is ignored by vLLM 0.32.0 (it reads --attention-backend): T4" in found.why


@pytest.mark.parametrize(
    ("flags", "to"),
    [
        ("--attention-backend FLASHINFER", {"attention_backend": None}),
        ("-ac.backend=FLASH_ATTN", {"attention_config.backend": None}),
        ("""-ac '{"backend":"FLASH_ATTN"}'""", {"attention_config": None}),
        (
            """-ac '{"backend":"FLASH_ATTN","flash_attn_version":3}'""",
            {"attention_config": '{"flash_attn_version":3}'},
        ),
    ],
)
def test_notes_a_forced_backend_from_any_source(flags: str, to: dict[str, str]) -> None:
    (found,) = findings(LINTS, case(f"{SERVE} {flags}", card=H100))
    assert (found.rule, found.severity, found.to) == ("H3", "info", to)


def test_reports_nothing_if_vllm_selects_the_backend() -> None:
    assert not findings(LINTS, case(SERVE, card=T4))
    assert not findings(LINTS, case(f"{SERVE} --attention-backend auto", card=T4))
    assert not findings(LINTS, case(f"{SERVE} --attention-backend TRITON_ATTN", card=None))[1:]


def test_bfloat16_on_turing_becomes_half() -> None:
    (found,) = findings(LINTS, case(f"{SERVE} --dtype bfloat16", card=T4, model=LLAMA_8B_AWQ))
    assert (found.rule, found.severity, found.to) == ("H2", "error", {"dtype": "half"})


def test_accepts_bfloat16_from_ampere_on_and_without_a_known_gpu() -> None:
    assert not findings(LINTS, case(f"{SERVE} --dtype bfloat16", card=A100))
    assert not findings(LINTS, case(f"{SERVE} --dtype bfloat16"))
    assert not findings(LINTS, case(f"{SERVE} --dtype half", card=T4))


def test_reports_an_old_build_without_a_promise() -> None:
    (found,) = findings(LINTS, case(SERVE, version="0.12.0", env="NIM_MODEL_PROFILE=x", card=T4))
    assert (found.rule, found.klass) == ("E1", "note")
    assert "NIM" in found.why
    assert "measure it" in found.expects


@pytest.mark.parametrize(
    ("version", "reported"), [("0.12.0", ["E1"]), ("0.14.1", []), ("", []), ("0.32.0", [])]
)
def test_reports_only_a_known_old_version_as_old(version: str, reported: list[str]) -> None:
    assert rules(findings(LINTS, case(SERVE, version=version))) == reported


def test_names_a_slow_kernel_from_the_log() -> None:
    log = ("INFO [awq.py:1] Using ExllamaLinearKernel for AutoAWQ",)
    (found,) = findings(LINTS, case(SERVE, log=log, model=LLAMA_8B_AWQ))
    assert (found.rule, dict(found.to)) == ("E2", {})
    assert "ExllamaLinearKernel" in found.why


def test_explicit_awq_forces_the_slow_kernel_only_in_versions_that_apply_it() -> None:
    (found,) = findings(LINTS, case(f"{SERVE} --quantization awq", version="0.14.0"))
    assert (found.rule, found.to) == ("E2", {"quantization": None})
    assert not findings(LINTS, case(f"{SERVE} --quantization awq", version="0.32.0"))
    assert not findings(LINTS, case(f"{SERVE} --quantization awq", version=""))
    assert not findings(LINTS, case(f"{SERVE} --quantization awq_marlin", version="0.14.0"))


@pytest.mark.parametrize("kind", ["fp8", "fp8_e5m2", "bfloat16"])
def test_refuses_fp8_kv_cache_on_turing(kind: str) -> None:
    (found,) = findings(LINTS, case(f"{SERVE} --kv-cache-dtype {kind}", card=T4))
    assert (found.rule, found.severity, found.to) == ("H2", "error", {"kv_cache_dtype": None})
    for card, version in ((H100, "0.32.0"), (A10, "0.32.0"), (T4, "0.14.1")):
        assert not findings(LINTS, case(f"{SERVE} --kv-cache-dtype {kind}", card=card, version=version))


def test_a_forced_triton_has_no_fp8_kv_cache_before_ada() -> None:
    command = f"{SERVE} --kv-cache-dtype fp8 --attention-backend TRITON_ATTN"
    assert "H2" in rules(findings(LINTS, case(command, card=A100)))
    assert "H2" not in rules(findings(LINTS, case(command, card=L40S)))


def test_an_fp8_kv_cache_on_ampere_needs_flashinfer_in_older_releases() -> None:
    command = f"{SERVE} --kv-cache-dtype fp8"
    (found,) = findings(LINTS, case(command, card=A10, version="0.19.0"))

    assert (found.rule, found.klass) == ("H2", "note")
    assert not findings(LINTS, case(command, card=L40S, version="0.19.0"))
    assert rules(
        findings(LINTS, case(f"{command} --attention-backend FLASHINFER", card=A10, version=""))
    ) == ["H3"]


def test_a_model_that_vllm_upcasts_on_turing_is_noted() -> None:
    (found,) = findings(LINTS, case("vllm serve google/gemma-3-1b-it", card=T4, model=GEMMA_1B))

    assert (found.rule, found.klass) == ("H2", "note")
    assert "float32" in found.why
    assert not findings(LINTS, case("vllm serve google/gemma-3-1b-it", card=A10, model=GEMMA_1B))


def test_current_builds_do_not_support_volta() -> None:
    v100 = GpuModel(name="V100", capability=(7, 0), memory_gib=15.8)
    (found,) = findings(LINTS, case(SERVE, card=v100))
    assert (found.rule, dict(found.to)) == ("E1", {})
    assert not findings(LINTS, case(SERVE, card=v100, version="0.19.1"))
    assert not findings(LINTS, case(SERVE, card=T4))
