"""The time of one engine step on a given GPU: a roofline with a hinge, plus host time."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from flettner.simulator.hardware import Hardware

MAX_CAPTURE = 512  # vLLM captures CUDA graphs up to min(2 x max_num_seqs, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of one step, in tokens and sequences."""

    tokens: int  # of all sequences
    sequences: int
    prefills: int = 0  # sequences that still compute their prompt
    kv_read: int = 0  # tokens of context read by the sequences that decode
    prefill_area: float = 0.0  # sum of chunk x (context before it + half the chunk)
    drafted: int = 0  # of the tokens, by speculative decoding
    longest_draft: int = 0  # of a sequence, in tokens


class StepParts(NamedTuple):
    """The parts of a step in seconds: its kernels, their launches, which overlap with them, and the host."""

    busy_s: float
    launch_s: float = 0.0
    host_s: float = 0.0

    def seconds(self, slowdown: float = 1.0) -> float:
        """`slowdown`: of the kernels, on a card that others use too."""
        return max(self.busy_s * slowdown, self.launch_s) + self.host_s


@cache
def capture_sizes(largest: int) -> tuple[int, ...]:
    """Return the batch sizes that vLLM captures: 1, 2, 4, every 8 up to 256, every 16 above."""
    sizes: Iterable[int] = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """T = max(T_gpu, T_launch) + h0 + h1 x sequences.

    T_gpu = max(weights, t0 + b x tokens) + head + d x kv_read + e x prefill_area: below the ridge a step
    costs the reading of the weights whatever its size, above it each token costs. Launching kernels one by
    one overlaps with the GPU, so eager mode costs only what exceeds T_gpu.
    """

    hardware: Hardware
    eager: bool = False
    largest_graph: int = MAX_CAPTURE
    draft_cost: float = 0.0  # of each token of the longest draft, as a share of `weights_us`

    def graph_size(self, work: StepWork) -> int | None:
        """Return the captured size that the step uses; None without a graph."""
        sizes = () if self.eager else capture_sizes(self.largest_graph)
        at = bisect_left(sizes, work.tokens)
        return sizes[at] if at < len(sizes) else None

    def seconds(self, work: StepWork) -> float:
        return self.split(work).seconds()

    def split(self, work: StepWork) -> "StepParts":
        gpu = self.hardware
        size = self.graph_size(work)
        padded = size if size is not None and not work.prefills else work.tokens
        busy_us = (
            max(gpu.weights_us, gpu.tokens_from_us + gpu.token_us * padded)
            + gpu.head_us
            + gpu.kv_read_us * work.kv_read
            + gpu.prefill_attention_us * work.prefill_area
            + gpu.weights_us * self.draft_cost * work.longest_draft
        )
        launch_us = gpu.layers * gpu.launch_us if size is None else 0.0
        host_us = gpu.host_step_us + gpu.host_sequence_us * work.sequences
        return StepParts(busy_us / 1e6, launch_us / 1e6, host_us / 1e6)
