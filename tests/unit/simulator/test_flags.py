"""The command line: spellings, defaults and errors of vLLM."""

import pytest

from flettner.simulator.faults import Faults, faults_for
from flettner.simulator.flags import Flags, InvalidFlagError, parse


def flags(text: str) -> Flags:
    return parse(["--model", "tiny", *text.split()])


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-seqs 4",
        "--max_num_seqs 4",
        "--max-num-seqs=4",
        "--max_num_seqs=4",
        "--max-num-seqs 9 --max-num-seqs 4",
    ],
)
def test_a_flag_may_be_spelled_as_in_vllm_and_the_last_one_wins(text: str) -> None:
    assert flags(text).limits.max_num_seqs == 4


def test_boolean_flags_have_a_no_form_and_the_last_one_wins() -> None:
    assert not flags("--enable-prefix-caching --no-enable-prefix-caching").enable_prefix_caching
    assert flags("--no-enable-prefix-caching --enable-prefix-caching").enable_prefix_caching


@pytest.mark.parametrize(
    ("hardware", "seqs", "batched"),
    [("t4-8b-awq", 256, 2048), ("h100-8b", 1024, 8192), ("a100-8b", 256, 2048)],
)
def test_defaults_depend_on_the_gpu(hardware: str, seqs: int, batched: int) -> None:
    limits = flags(f"--sim-hardware {hardware}").limits

    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (seqs, batched)


def test_sizes_have_suffixes() -> None:
    assert flags("--max-num-batched-tokens 4k --max-model-len 2K").limits.max_num_batched_tokens == 4000
    assert flags("--max-num-batched-tokens 4k --max-model-len 2K").memory.max_model_len == 2048


def test_only_values_that_differ_are_non_default_args() -> None:
    assert flags("--max-num-seqs 4 --watermark 0.0").given == {"model": "tiny", "max_num_seqs": 4}


@pytest.mark.parametrize("text", ["--swap-space 4", "--max-num-seqs 8k", "--scheduling-policy priority"])
def test_an_argparse_error_exits_with_2(text: str) -> None:
    with pytest.raises(SystemExit) as left:
        flags(text)

    assert left.value.code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "--max-num-batched-tokens 4 --max-num-seqs 8",
            r"\(4\) must be greater than or equal to max_num_seqs \(8\)",
        ),
        ("--max-num-seqs 0", "max_num_seqs should be greater than or equal to 1"),
        ("--gpu-memory-utilization 1.5", "gpu_memory_utilization should be in"),
        ("--watermark 1", "watermark should be in"),
        (
            "--max-num-seqs 4 --max-num-active-seqs 8",
            r"max_num_active_seqs \(8\) must be <= max_num_seqs \(4\)",
        ),
        ("--no-enable-chunked-prefill --max-num-batched-tokens 512", "smaller than max_model_len"),
        ("--long-prefill-token-threshold 9000", "cannot be greater than the max_model_len"),
        ("--sim-fault max_num_sqes=7:exit", "'max_num_sqes' is no flag"),
    ],
)
def test_a_value_rejected_by_vllm_is_a_validation_error(text: str, words: str) -> None:
    with pytest.raises(InvalidFlagError, match=f"(?s)ValidationError.*{words}"):
        flags(text)


def test_a_fault_applies_only_to_the_named_value() -> None:
    texts = [
        "max_num_seqs=7:errors=0.2",
        "max-num-seqs=7:slow=3",
        "enforce_eager=true:exit",
        "*:truncate=0.1",
    ]

    assert faults_for(texts, {"max_num_seqs": 7, "enforce_eager": False}) == Faults(
        errors=0.2, slow=3.0, truncate=0.1
    )
    assert faults_for(texts, {"max_num_seqs": 8, "enforce_eager": True}) == Faults(exit=True, truncate=0.1)


@pytest.mark.parametrize(
    "text", ["max_num_seqs=7", "*:explode", "*:errors=2", "*:slow=0", "*:errors", "*:exit=1"]
)
def test_an_unreadable_fault_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="--sim-fault"):
        faults_for([text], {"max_num_seqs": 7})
