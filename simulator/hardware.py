"""The pairs of GPU and model that the simulator knows, each coefficient with where it was measured.

Sources, by their mark in a preset:
[L] fit of the kernel profiles of RTX 4090 and RTX PRO 6000 in casys-kaist/LLMServingSim (profiler/perf, MIT);
    a prototype with this law, without graph padding and with h1 per decoding sequence only, came within 3 %
    of recorded vLLM 0.19 runs on TTFT, TPOT and E2E, h0 and h1 tuned on those same two runs.
[V] fit of microsoft/vidur's mlp.csv for Llama-2-7B and Llama-3-8B.
[T] fitted to three public measurements of an 8B AWQ model on a T4: 42, 158, 476 tokens/s at 1, 4, 16 users.
[R] fitted to recordings of vLLM 0.25 on an H100 (tests/data/gpu).
[P] physics: bytes over 0.85 of the bandwidth, FLOP over half of the peak. A prior, not a measurement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

GIB = 1 << 30
LLAMA_3_8B_KV_BYTES = 131_072  # a token: 32 layers x 8 KV heads x 128 x 2 (K and V) x 2 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One model on one GPU. Times in microseconds, memory in bytes."""

    name: str
    gpu: str
    weights_us: float  # reading every weight once: the floor of a step
    tokens_from_us: float = 0.0  # intercept of the compute line
    token_us: float  # slope of the compute line, per token in the batch
    head_us: float = 0.0  # language-model head and the constant part of attention
    kv_read_us: float  # per token of KV cache that decoding reads
    prefill_attention_us: float = 0.0  # per prompt token and token of context it attends to
    host_step_us: float = 800.0  # h0: scheduling and sampling, per step [L]
    host_sequence_us: float = 40.0  # h1: per sequence of the batch [L]
    layers: int = 32
    hidden: int = 4096  # numbers of a token that an all-reduce exchanges
    launch_us: float = (
        260.0  # per layer without CUDA graphs: H100 8B at batch 1, 8.4 ms eager, 5.1 with graphs
    )
    memory: int
    weights: int
    kv_token_bytes: int = LLAMA_3_8B_KV_BYTES
    context: int = 600 << 20  # CUDA context, NCCL, the allocator's waste
    activation_token_bytes: int = 32 << 10  # per token of the batch budget
    sequence_bytes: int = 2 << 20  # per sequence: sampler buffers; H200 70B lost 3.7 MiB a sequence
    graph_bytes: int = 2 << 20  # per captured size
    oom_above: float = 0.95  # gpu_memory_utilization beyond which start-up runs out of memory
    max_model_len: int = 8192


PRESETS: dict[str, Hardware] = {
    preset.name: preset
    for preset in (
        Hardware(  # [L]
            name="4090-8b",
            gpu="NVIDIA GeForce RTX 4090",
            weights_us=15_675,
            tokens_from_us=5_940,
            token_us=87.6,
            head_us=1_190 + 366,
            kv_read_us=0.1415,
            prefill_attention_us=0.00456,
            memory=int(23.64 * GIB),
            weights=int(14.96 * GIB),
        ),
        Hardware(  # [L]
            name="pro6000-8b",
            gpu="NVIDIA RTX PRO 6000 Blackwell",
            weights_us=10_042,
            tokens_from_us=5_354,
            token_us=35.24,
            head_us=715 + 370,
            kv_read_us=0.0914,
            prefill_attention_us=0.00259,
            memory=int(94.97 * GIB),
            weights=int(14.96 * GIB),
        ),
        Hardware(  # line [V] of Llama-2-7B, scaled by weights 8.03/6.74; KV read and prefill attention [P]
            name="h100-8b",
            gpu="NVIDIA H100 80GB HBM3",
            weights_us=6_670,
            tokens_from_us=3_350,
            token_us=24.4,
            head_us=400,
            kv_read_us=0.046,
            prefill_attention_us=0.0010,
            memory=int(79.11 * GIB),
            weights=int(14.96 * GIB),
        ),
        Hardware(  # [R]; a model of Qwen3-8B's shape with a vocabulary of 32,768
            name="h100-qwen3-8b",
            gpu="NVIDIA H100 80GB HBM3",
            weights_us=6_180,
            tokens_from_us=2_820,
            token_us=21.0,
            kv_read_us=0.052,
            prefill_attention_us=0.0012,
            host_step_us=400.0,
            host_sequence_us=9.0,
            layers=36,
            launch_us=1_050.0,
            memory=int(79.11 * GIB),
            weights=int(13.45 * GIB),
            kv_token_bytes=147_456,
        ),
        Hardware(  # [V]; KV read [P]
            name="a100-8b",
            gpu="NVIDIA A100-SXM4-80GB",
            weights_us=10_100,
            tokens_from_us=6_470,
            token_us=67.2,
            head_us=600,
            kv_read_us=0.076,
            prefill_attention_us=0.0020,
            memory=int(79.15 * GIB),
            weights=int(14.96 * GIB),
        ),
        Hardware(  # floor and cost of a sequence [T], slope and KV read [P]; slow enough to watch
            name="t4-8b-awq",
            gpu="Tesla T4",
            weights_us=22_400,
            tokens_from_us=8_000,
            token_us=490.0,
            kv_read_us=0.48,
            prefill_attention_us=0.008,
            host_sequence_us=650.0,
            memory=int(14.56 * GIB),
            weights=int(5.7 * GIB),
        ),
        Hardware(  # [P] of a model of Qwen3-1.7B's shape; the host as in [R]
            name="l40s-2b",
            gpu="NVIDIA L40S",
            weights_us=4_690,
            token_us=18.8,
            kv_read_us=0.156,
            prefill_attention_us=0.0025,
            host_step_us=400.0,
            host_sequence_us=9.0,
            layers=28,
            hidden=2048,
            memory=int(44.4 * GIB),
            weights=int(3.2 * GIB),
            kv_token_bytes=114_688,
        ),
        Hardware(  # [P] as above
            name="h100-2b",
            gpu="NVIDIA H100 80GB HBM3",
            weights_us=1_210,
            token_us=6.9,
            kv_read_us=0.0403,
            prefill_attention_us=0.00046,
            host_step_us=400.0,
            host_sequence_us=9.0,
            layers=28,
            hidden=2048,
            memory=int(79.11 * GIB),
            weights=int(3.2 * GIB),
            kv_token_bytes=114_688,
        ),
    )
}

LINKS: Mapping[str, tuple[float, float]] = {"nvlink": (12.0, 250.0), "pcie": (40.0, 15.0)}
"""Microseconds of an all-reduce of a small batch, and GB/s of a large one, by the link: neither is the
performance model's number for it."""

SCALED: Mapping[str, tuple[str, ...]] = {
    **{field.name: (field.name,) for field in fields(Hardware) if field.name.endswith("_us")},
    "seq_us": ("host_sequence_us",),
    "attention": ("kv_read_us", "prefill_attention_us"),
}
"""The coefficients of the step time that `scaled` multiplies, by the names that it takes."""


def split(gpu: Hardware, tp: int, link: str) -> Hardware:
    """Return one of `tp` GPUs that share every layer, each with two all-reduces over the link."""
    if tp == 1:
        return gpu
    each_us, gb_per_s = LINKS[link]
    parts = ("weights_us", "tokens_from_us", "token_us", "head_us", "kv_read_us", "prefill_attention_us")
    shared = {name: getattr(gpu, name) / tp for name in parts}
    exchanged = 2 * gpu.layers * 2 * gpu.hidden * 2 * (tp - 1) / tp  # bytes of a token
    shared["head_us"] += 2 * gpu.layers * each_us
    shared["token_us"] += exchanged / (gb_per_s * 1e3)
    return replace(gpu, **shared, weights=gpu.weights // tp, kv_token_bytes=gpu.kv_token_bytes // tp)


def scaled(gpu: Hardware, times: Mapping[str, float]) -> Hardware:
    """Return the hardware with other step times: a factor multiplies the coefficients of its name in SCALED.

    Raises ValueError for a name that is not there, or a factor that is not positive.
    """
    for name, factor in times.items():
        if name not in SCALED:
            raise ValueError(f"{name!r} is no part of the step time: one of {', '.join(sorted(SCALED))}")
        if not 0 < factor < float("inf"):
            raise ValueError(f"{name}: the factor must be positive, not {factor:g}")
        gpu = replace(gpu, **{field: getattr(gpu, field) * factor for field in SCALED[name]})
    return gpu
