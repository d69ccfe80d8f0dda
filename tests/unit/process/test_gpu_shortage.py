"""Whether a GPU has the memory for one more server beside those that are on it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flettner.actuators.host import procfs
from flettner.actuators.host.memory import GpuMemory
from flettner.actuators.process.gpu_shortage import Claim, describe_shortage
from flettner.vllm_facts.values import Value

TOTAL_MIB = 80 * 1024.0


def gpu(free_gib: float, index: int = 0, *, sliced: bool = False) -> GpuMemory:
    return GpuMemory(
        index=index, uuid=f"GPU-{index}", free_mib=free_gib * 1024, total_mib=TOTAL_MIB, sliced=sliced
    )


def claim(share: float, name: str = "", visible: str = "0") -> Claim:
    return Claim(name, {"CUDA_VISIBLE_DEVICES": visible}, {"gpu_memory_utilization": share})


BLUE = claim(0.42, "chat-r0")


def test_a_green_that_does_not_fit_is_refused_with_the_numbers() -> None:
    assert describe_shortage(claim(0.9), [BLUE], [gpu(45)]) == (
        "GPU 0 has 45.0 of 80.0 GiB free beside chat-r0 (0.42), and a server with gpu_memory_utilization = "
        "0.9 takes 72.0 GiB at once, so it would not start: a share of 0.56 would fit, or end another server "
        'there, or write strategy = "swap"'
    )


@pytest.mark.parametrize(
    "setting",
    [
        {"tensor_parallel_size": 4},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        {"data_parallel_size": 4},
    ],
)
def test_more_gpus_than_the_server_sees_are_refused_with_both_numbers(
    setting: dict[str, Value],
) -> None:
    wanted = Claim("", {"CUDA_VISIBLE_DEVICES": "0,1"}, {"gpu_memory_utilization": 0.1, **setting})

    assert describe_shortage(wanted, [], [gpu(80, index) for index in range(8)]) == (
        "this setting needs 4 GPUs, and the server sees 2: request at most 2"
    )
    assert not describe_shortage(replace(wanted, env={}), [], [gpu(80, index) for index in range(8)])
    over_ray = {**wanted.setting, "distributed_executor_backend": "ray"}
    assert not describe_shortage(replace(wanted, setting=over_ray), [], [gpu(80)])


@pytest.mark.parametrize(
    ("wanted", "claims", "gpus", "refused"),
    [
        pytest.param(claim(0.42), [BLUE], [gpu(45)], False, id="it fits"),
        pytest.param(claim(0.42), [BLUE], [gpu(20)], True, id="other programs hold the memory"),
        pytest.param(
            claim(0.42), [BLUE, claim(0.3, "rag/rag-r1")], [gpu(45)], True, id="another target's loads"
        ),
        pytest.param(
            claim(0.42), [BLUE, claim(0.3, "rag/rag-r1", "1")], [gpu(45), gpu(1, 1)], False, id="elsewhere"
        ),
        pytest.param(claim(0.42, visible="1"), [BLUE], [gpu(1), gpu(79, 1)], False, id="another GPU"),
        pytest.param(claim(0.9), [BLUE], [gpu(45, sliced=True)], False, id="MIG: not known"),
        pytest.param(claim(0.9, visible="5"), [BLUE], [gpu(45)], False, id="its GPU is not known"),
    ],
)
def test_it_is_refused_only_where_memory_is_known_to_lack(
    wanted: Claim, claims: Sequence[Claim], gpus: Sequence[GpuMemory], refused: bool
) -> None:
    assert bool(describe_shortage(wanted, claims, gpus)) is refused


def test_an_open_device_is_seen(tmp_path: Path) -> None:
    device, own = tmp_path / "nvidia0", procfs.process(os.getpid())
    assert own is not None

    with device.open("w"):
        assert procfs.has_open(own, str(tmp_path / "nvidia[0-9]*"))
    assert not procfs.has_open(own, str(tmp_path / "nvidia[0-9]*"))
