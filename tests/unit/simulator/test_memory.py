"""Memory of a GPU, and the error messages of a failed start."""

from dataclasses import replace

import pytest

from flettner.simulator.hardware import PRESETS
from flettner.simulator.memory import Demand, StartError, kv_blocks

RTX_4090 = PRESETS["4090-8b"]
DEFAULT = Demand(
    gpu_memory_utilization=0.9,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_model_len=8192,
    block_size=16,
    largest_graph=512,
)


def test_a_4090_has_about_the_recorded_number_of_blocks() -> None:
    assert kv_blocks(RTX_4090, DEFAULT) == pytest.approx(2588, rel=0.05)


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_memory_utilization": 0.94},
        {"max_num_seqs": 64},
        {"max_num_batched_tokens": 512},
        {"largest_graph": 0},
    ],
    ids=str,
)
def test_more_memory_or_fewer_buffers_give_more_blocks(change: dict[str, float]) -> None:
    assert kv_blocks(RTX_4090, replace(DEFAULT, **change)) > kv_blocks(RTX_4090, DEFAULT)  # type: ignore[arg-type]


def test_fp8_halves_the_size_of_a_block() -> None:
    assert kv_blocks(RTX_4090, replace(DEFAULT, kv_dtype_bytes=0.5)) == pytest.approx(
        2 * kv_blocks(RTX_4090, DEFAULT), abs=1
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"gpu_memory_utilization": 0.97},
            "CUDA out of memory occurred when warming up sampler with 256 dummy",
        ),
        ({"gpu_memory_utilization": 0.5}, "No available memory for the cache blocks"),
        ({"max_model_len": 100_000}, r"max seq len \(100000\).*estimated maximum model length is \d+"),
        ({"num_gpu_blocks_override": 10}, "estimated maximum model length is 160"),
    ],
    ids=["oom", "nothing left", "too long", "override"],
)
def test_a_failed_start_has_the_error_message_of_vllm(change: dict[str, float], words: str) -> None:
    with pytest.raises(StartError, match=words):
        kv_blocks(RTX_4090, replace(DEFAULT, **change))  # type: ignore[arg-type]
