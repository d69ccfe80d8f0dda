"""Several GPUs that hang in their first exchange: a log that ends there, and requests without a token."""

import pytest

from flettner.lint.rules import hangs
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.lint_cases import case, findings

NCCL = "INFO 02-11 10:00:02 [pynccl.py:63] vLLM is using nccl==2.26.2"
INIT = "host:71:90 [1] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 1 busId 2a000 - Init COMPLETE"
WAITS = "INFO 02-11 10:00:12 [core_client.py:425] Waiting for 1 core engine proc(s) to start: {0}"
GOES_ON = "INFO 02-11 10:00:09 [gpu_model_runner.py:9] Starting to load model m"
PEERS = {"NCCL_P2P_DISABLE": "1"}


def count(answers: float) -> str:
    return (
        f"INFO [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
        f"{answers} tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%"
    )


def started(flags: str, *log: str, card: str = "RTX 3090", env: str = "") -> ServeConfig:
    return case(f"vllm serve m {flags}", log=log, card=find_gpu(card), env=env)


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        pytest.param(started("-tp 2", NCCL), PEERS, "IOMMU", id="over PCIe"),
        pytest.param(started("-tp 2", NCCL, INIT, WAITS, WAITS), PEERS, "--disable-custom", id="still waits"),
        pytest.param(
            started("-tp 2", NCCL, env="NCCL_P2P_DISABLE=1"),
            {},
            "--ipc=host",
            id="peer access is off already",
        ),
        pytest.param(started("-tp 2", NCCL, card="H200"), {}, "tells whether", id="over NVLink"),
        pytest.param(started("-tp 2 -pp 2 --nnodes 2", NCCL), {}, "GLOO_SOCKET_IFNAME", id="two hosts"),
        pytest.param(started("-tp 2", count(0.0), count(0.0)), PEERS, "IOMMU", id="requests without a token"),
    ],
)
def test_a_first_exchange_that_hangs_is_named(
    config: ServeConfig, changes: dict[str, str], said: str
) -> None:
    (finding,) = findings(hangs.LINTS, config)

    assert finding.env == changes
    assert said in finding.expects


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(started("", NCCL), id="one GPU"),
        pytest.param(started("-tp 2", NCCL, GOES_ON), id="the start goes on"),
        pytest.param(started("-tp 2", "RuntimeError: an odd one", NCCL), id="an error"),
        pytest.param(started("-tp 2", "INFO Loading weights took 3.1 seconds", NCCL), id="weights are read"),
        pytest.param(started("-tp 2", count(0.0)), id="one count"),
        pytest.param(started("-tp 2", count(31.0), count(0.0), count(0.0)), id="it has worked"),
        pytest.param(started("", count(0.0), count(0.0)), id="one GPU without a token"),
    ],
)
def test_a_log_that_shows_no_hang_of_several_gpus_says_nothing(config: ServeConfig) -> None:
    assert list(findings(hangs.LINTS, config)) == []
