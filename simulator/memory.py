"""GPU memory: the number of KV cache blocks, or vLLM's start error."""

from dataclasses import dataclass

from flettner.simulator.hardware import GIB, Hardware
from flettner.simulator.step_time import capture_sizes


class StartError(Exception):
    """The engine cannot start; the message is vLLM's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The memory that the flags require on one GPU."""

    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    largest_graph: int  # 0: eager
    kv_dtype_bytes: float = 1.0  # relative to the 16-bit cache
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None


def kv_blocks(gpu: Hardware, demand: Demand, oom_above: float | None = None) -> int:
    """Return the blocks left for the KV cache. Raises StartError, as vLLM, if the start would fail."""
    utilization = demand.gpu_memory_utilization
    if utilization > (gpu.oom_above if oom_above is None else oom_above):
        raise StartError(
            f"CUDA out of memory occurred when warming up sampler with {demand.max_num_seqs} dummy requests. "
            "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        )
    per_token = int(gpu.kv_token_bytes * demand.kv_dtype_bytes)
    available = demand.kv_cache_memory_bytes
    if available is None:
        graphs = len(capture_sizes(demand.largest_graph)) if demand.largest_graph else 0
        available = int(
            utilization * gpu.memory
            - gpu.weights
            - gpu.context
            - gpu.activation_token_bytes * demand.max_num_batched_tokens
            - gpu.sequence_bytes * demand.max_num_seqs
            - gpu.graph_bytes * graphs
        )
    if available <= 0:
        raise StartError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        )
    blocks = demand.num_gpu_blocks_override or available // (per_token * demand.block_size)
    longest = blocks * demand.block_size
    if longest < demand.max_model_len:
        needed = demand.max_model_len * per_token / GIB
        raise StartError(
            f"To serve at least one request with the model's max seq len ({demand.max_model_len}), "
            f"({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({longest * per_token / GIB:.2f} GiB). Based on the available memory, the estimated maximum "
            f"model length is {longest}. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when initializing the engine."
        )
    return blocks
