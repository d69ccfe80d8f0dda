"""Which GPUs a process takes, by its environment and its flags."""

import pytest

from flettner.actuators.host.memory import GpuMemory
from flettner.actuators.process.sleep import gpus_of
from flettner.vllm_facts.values import Setting

KNOWN = tuple(
    GpuMemory(index=index, uuid=f"GPU-{name}", free_mib=None if name == "dark" else 1.0, total_mib=80.0)
    for index, name in enumerate(("aa", "bb", "cc", "dark"))
)


@pytest.mark.parametrize(
    ("visible", "setting", "expected"),
    [
        (None, {}, [0]),
        (None, {"tensor_parallel_size": 2}, [0, 1]),
        ("2,1", {}, [2]),
        ("2, 1", {"tensor_parallel_size": 2}, [2, 1]),
        ("GPU-bb", {}, [1]),
        ("1", {"tensor_parallel_size": 2}, None),
        ("7", {}, None),
        ("", {}, None),
        ("3", {}, None),
    ],
    ids=[
        "all: the first",
        "all: the first two",
        "an order",
        "two of them",
        "by uuid",
        "too few",
        "an unknown one",
        "none",
        "one whose memory is not known",
    ],
)
def test_a_server_takes_the_first_gpus_that_it_sees(
    visible: str | None, setting: Setting, expected: list[int] | None
) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    gpus = gpus_of(env, setting, KNOWN)

    assert (gpus and [gpu.index for gpu in gpus]) == expected
