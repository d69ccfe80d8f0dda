"""The dry run of flags in vLLM's own interpreter."""

import json
import os
import subprocess
from collections.abc import Sequence

import pytest

from flettner.actuators.vllm.flag_check import DryRunResult, parse_result, script
from tests.support.real_vllm import ENVIRONMENT, RealVllm, real_vllm

pytestmark = pytest.mark.smoke


def checked_by(vllm: RealVllm, *lines: Sequence[str]) -> DryRunResult:
    ended = subprocess.run(
        [vllm.python, "-c", script(), json.dumps([[str(vllm.model), *line] for line in lines])],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return parse_result(ended.returncode, ended.stdout)


@pytest.mark.timeout(900)
def test_resolves_valid_flags_and_names_the_error_of_each_invalid_one() -> None:
    checked = checked_by(
        real_vllm(),
        ["--max-model-len", "2048", "--max-num-seqs", "4"],
        ["--max-model-len", "2048", "--max-num-seqs", "4", "--max-num-active-seqs", "2"],
        ["--max-model-len", "2048", "--max-num-seqs", "16"],
        ["--enforce-eager"],
        ["--num-scheduler-steps", "8"],
        ["--max-num-seqs", "64", "--max-num-batched-tokens", "32"],
        ["--tensor-parallel-size", "3"],
    )

    assert checked.why == ""
    few, capped, more, eager, removed, impossible, split = checked.answers
    assert few.resolved["max_num_seqs"] == 4
    assert few.resolved["max_num_batched_tokens"] == 2048
    assert capped.hash == few.hash
    assert more.hash != few.hash
    assert (few.compiles, eager.compiles) == (True, False)
    assert (removed.kind, impossible.kind, split.kind) == ("usage", "value", "value")
    assert "unrecognized arguments: --num-scheduler-steps" in removed.error
    assert (
        "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)" in impossible.error
    )
    assert "attention heads (4) must be divisible by tensor parallel size (3)" in split.error
