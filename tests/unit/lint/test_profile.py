"""W1: first values for a workload."""

import pytest

from flettner.lint.rules.profile import LINTS, PROFILES
from tests.support.lint_cases import A100, H100, LLAMA_8B, QWEN_235B, T4, case, findings, rules

SERVE = "vllm serve x --max-model-len 8192"


def test_chat_profile_on_a_large_gpu_starts_below_the_vllm_default() -> None:
    reported = findings(LINTS, case(SERVE, profile="chat", card=H100))
    assert [one.to for one in reported] == [{"max_num_batched_tokens": 2048}, {"max_num_seqs": 128}]
    assert {one.severity for one in reported} == {"info"}


def test_batch_profile_starts_larger_if_the_cache_fits() -> None:
    reported = findings(LINTS, case(SERVE, profile="batch", card=A100, model=LLAMA_8B))
    assert [one.to for one in reported] == [{"max_num_batched_tokens": 8192}]
    flags = "--max-num-seqs 16 --max-num-batched-tokens 2048"
    reported = findings(LINTS, case(f"{SERVE} {flags}", profile="batch", card=A100, model=LLAMA_8B))
    assert [one.to for one in reported] == [{"max_num_batched_tokens": 4096}, {"max_num_seqs": 256}]
    assert {one.severity for one in reported} == {"warning"}


def test_never_proposes_more_sequences_than_the_cache_holds() -> None:
    asked = case("vllm serve x --max-num-seqs 2", profile="batch", card=T4, model=LLAMA_8B)
    assert not any("max_num_seqs" in one.to for one in findings(LINTS, asked))


def test_reports_nothing_without_a_known_profile() -> None:
    assert not findings(LINTS, case(SERVE, card=H100))
    assert not findings(LINTS, case(SERVE, card=H100, profile="weather"))


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_accepts_its_own_proposal(profile: str) -> None:
    values = PROFILES[profile]
    flags = f"--max-num-batched-tokens {values.first_tokens} --max-num-seqs {values.first_seqs}"
    reported = findings(LINTS, case(f"{SERVE} {flags}", profile=profile, card=H100))
    assert not reported


def test_wide_expert_parallel_requires_its_flags() -> None:
    flags = "--max-num-batched-tokens 8192 --max-num-seqs 256 -dp 16"
    (found,) = findings(LINTS, case(f"{SERVE} {flags}", profile="wide-ep", model=QWEN_235B))
    assert found.to == {"enable_expert_parallel": True, "enable_eplb": True}
    assert rules(findings(LINTS, case(f"{SERVE} {flags} -ep --enable-eplb", profile="wide-ep"))) == []


def test_wide_expert_parallel_is_not_for_a_dense_model() -> None:
    (found,) = findings(LINTS, case(SERVE, profile="wide-ep", model=LLAMA_8B))

    assert not found.to
    assert "has none" in found.why
