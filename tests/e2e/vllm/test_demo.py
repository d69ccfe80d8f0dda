"""The README's demo with real vLLM on the CPU."""

from pathlib import Path

import pytest

from tests.e2e.test_demo import assert_complete_report, demo
from tests.support.real_vllm import real_vllm

pytestmark = pytest.mark.slow


@pytest.mark.timeout(2400)
def test_the_demo_runs_to_its_end_on_real_vllm(tmp_path: Path) -> None:
    vllm = real_vllm()

    facts = demo("vllm", tmp_path, FLETTNER_VLLM_PYTHON=str(vllm.python), FLETTNER_TINY_MODEL=str(vllm.model))

    assert_complete_report(facts)
    before, after = (facts["rollouts"][0][side]["ttft_p95_ms"] for side in ("before", "after"))
    assert after < before / 3
