"""Hybrid models before their log: each sequence of a full decode step needs a block of state."""

import pytest

from flettner.lint.fixes import find_fixes_in_rounds
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import H100, case

LOG = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856)."
SERVED = 'INFO:     10.1.2.3:4 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request'


@pytest.mark.parametrize(
    ("flags", "version", "log", "to"),
    [
        ("", "0.28.0", (), {"max_num_seqs": 512}),
        ("--max-num-seqs 512", "0.28.0", (), {}),
        ("--enforce-eager --max-num-seqs 2048", "0.19.0", (), {"enforce_eager": False}),
        ("", "0.19.0", (), {}),  # graphs of fewer sequences, and a start
        ("", "0.28.0", (LOG,), {"max_num_seqs": 512}),
        ("", "0.28.0", (SERVED,), {}),  # the server runs, so its blocks are enough
    ],
)
def test_sequences_without_a_block_of_state_are_an_error(
    flags: str, version: str, log: tuple[str, ...], to: dict[str, Value]
) -> None:
    command = f"vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 32768 --gpu-memory-utilization 0.95 {flags}"
    model = find_model("Qwen/Qwen3.6-27B-FP8")
    config = case(command, model=model, card=H100, gpus=1, version=version, log=log)

    assert find_fixes_in_rounds(config, all_lints()).to == to
