"""O1: KV cache and weights in the host's memory."""

import pytest

from flettner.lint.rules.offloading import LINTS
from tests.support.lint_cases import A100, H100, LLAMA_8B, LLAMA_70B, case, findings


def test_weights_that_fit_the_gpu_return_to_it() -> None:
    asked = case("vllm serve x --max-model-len 8192 --cpu-offload-gb 10", model=LLAMA_8B, card=H100)
    (found,) = findings(LINTS, asked)
    assert (found.rule, found.severity, found.to) == ("O1", "warning", {"cpu_offload_gb": None})


@pytest.mark.parametrize("model", [LLAMA_70B, None])
def test_weights_that_need_the_host_stay_there(model: object) -> None:
    (found,) = findings(LINTS, case("vllm serve x --cpu-offload-gb 80", model=model, card=A100))
    assert (found.klass, found.to) == ("gated", {})
    assert "80 GiB of weights" in found.why


def test_server_without_offloading_has_no_finding() -> None:
    assert not findings(LINTS, case("vllm serve x --cpu-offload-gb 0", model=LLAMA_8B, card=H100))
