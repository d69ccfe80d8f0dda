"""V1: what this vLLM would not take of the command line."""

import pytest

from policies.lint_flags import LINTS
from policies.precedence import ORDER
from tests.policies.cases import case, findings, improved


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
        ("--gpu-memory-utilization 1.5", "is at most 1, not 1.5", ""),
        ("--max-num-seqs 8k", "is a whole number, not 8k", ""),
        ("--scheduling-policy lifo", "is one of fcfs, priority, not lifo", ""),
        (
            "--max-num-seqs 128 --max-num-batched-tokens 64",
            "is below",
            "--max-num-seqs 128 --max-num-batched-tokens 128",
        ),
    ],
)
def test_what_is_refused_is_named_and_mended(flags: str, why: str, better: str) -> None:
    command = f"vllm serve m {flags}"

    said = findings(LINTS, case(command))

    assert [(found.rule, found.severity) for found in said] == [("V1", "error")]
    assert why in said[0].why
    assert improved(command, said) == f"vllm serve m {better}".strip()
    assert not findings(LINTS, case(improved(command, said)))


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
def test_what_that_version_takes_is_left_alone(flags: str, version: str) -> None:
    assert not findings(LINTS, case(f"vllm serve m {flags}", version=version))


def test_of_an_unknown_version_only_a_warning_is_given() -> None:
    said = findings(LINTS, case("vllm serve m --swap-space 4 --no-such-flag-ever", version=""))

    assert [found.severity for found in said] == ["warning", "warning"]


def test_a_flag_is_too_new_for_an_old_version() -> None:
    (found,) = findings(LINTS, case("vllm serve m --max-num-active-seqs 8", version="0.30.0"))

    assert (found.severity, found.to) == ("error", {"max_num_active_seqs": None})
    assert "upgrade to 0.31" in found.expects


def test_a_variable_that_is_passed_over_is_told() -> None:
    forced = "VLLM_ATTENTION_BACKEND=FLASHINFER"

    (found,) = findings(LINTS, case("vllm serve m", env=forced))

    assert found.env == {"VLLM_ATTENTION_BACKEND": None}
    assert "--attention-backend" in found.why
    assert not findings(LINTS, case("vllm serve m", env=forced, version="0.14.0"))
    assert not findings(LINTS, case("vllm serve m", env="VLLM_TUNED_CONFIG_FOLDER=/tuned"))


def test_what_moved_into_json_is_written_into_the_json_that_is_there() -> None:
    asked = case("""vllm serve m --guided-decoding-backend xgrammar --structured-outputs-config '{"a": 1}'""")

    (found,) = findings(LINTS, asked)

    json = '{"a": 1, "backend": "xgrammar"}'
    assert found.to == {"guided_decoding_backend": None, "structured_outputs_config": json}


def test_it_stands_first_of_all() -> None:
    """See the order of the rules: nothing outranks what keeps a server from starting."""
    first = next(band for band in ORDER if "V1" in band.rules)
    assert first.rules[0] == "V1"
