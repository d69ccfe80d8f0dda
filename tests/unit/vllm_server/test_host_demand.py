"""Flags that ask for more memory of the host than there is are refused before any server starts."""

import pytest

from flettner.actuators.vllm.host_demand import describe_host_shortage, host_memory_needed
from flettner.vllm_facts.values import Setting

GIB = 1024**3


@pytest.mark.parametrize(
    ("setting", "gib"),
    [
        ({}, 0),
        ({"kv_offloading_size": 0}, 0),
        ({"kv_offloading_size": 100}, 100),
        ({"kv_offloading_size": 100, "tensor_parallel_size": 4}, 100),
        ({"cpu_offload_gb": 10, "tensor_parallel_size": 4}, 40),
        ({"mm_processor_cache_gb": 4, "api_server_count": 2, "data_parallel_size": 2}, 16),
        ({"kv_offloading_size": 8.5, "cpu_offload_gb": 1}, 9.5),
    ],
)
def test_what_the_flags_ask_for(setting: Setting, gib: float) -> None:
    assert host_memory_needed(setting) == gib * GIB


@pytest.mark.parametrize(
    ("at_most", "refused"), [(None, False), (1000 * GIB, False), (999 * GIB, True), (0, True)]
)
def test_more_than_there_is_is_refused_with_the_numbers(at_most: int | None, *, refused: bool) -> None:
    why = describe_host_shortage({"kv_offloading_size": 1000}, at_most, "this host has")

    assert bool(why) is refused
    if refused:
        assert why.startswith("kv_offloading_size = 1000 takes 1000.0 GiB of host memory, and this host has")


def test_a_server_whose_flags_ask_for_none_is_not_held_against_the_host() -> None:
    assert describe_host_shortage({"max_num_seqs": 8}, 0, "this host has") == ""
