"""The parallel layout of a model: the fewest GPUs per engine that hold weights and KV cache.

All rules that change the layout (D1 to D5, D7, L1) use this one plan, so that they never contradict each
other and one change is enough. Planning is idempotent: the plan for a proposed layout is that layout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.sizing.effective_flags import (
    Layout,
    is_expert_parallel,
    is_sparse,
    layout,
    memory_share,
    number_of,
    text_of,
)
from flettner.vllm_facts.sizing.kv_cache import KvCacheFit, estimate_fit, longest_request
from flettner.vllm_facts.sizing.typical_requests import MOE_SHARE, SHARE, recommend_share, required_share
from flettner.vllm_facts.values import Knob, Value

WIDEST = 8  # assumed GPUs of a host if unknown
PAIR = 2  # the largest number of PCIe GPUs with custom all-reduce
SMALL, SMALLISH = 7e9, 8.5e9  # parameters; the second covers models called 7B or 8B
LADDER = ((SMALL, 1), (20e9, 2), (73e9, 4))  # GPUs by parameters, assumed; a 70B model has up to 73
ENOUGH = 16384  # tokens of KV cache that an engine on one GPU needs at least
ROOMY = 0.75  # KV cache per byte of weights that an engine needs at least
SHORT = 2048  # tokens of KV cache above which a shorter context suffices
SAFE, STEP = 0.9, 1024  # share of the estimated KV cache; tokens
LATENT = 8  # GPUs over which latent attention is copied to each (references.AMD_MOE)
FEW = 128  # concurrent requests up to which tensor parallelism wins (references.AMD_MOE)
SPARSE_MLA = ("v3.2", "v3_2")
NVLINK_LOST = "not supported on more than two PCIe-only GPUs"
NO_PEERS = ("RTX 30", "RTX 40", "RTX 50")  # GeForce: the driver gives them no access to one another
ALONE = ("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb")
ELSEWHERE = (*ALONE, "data_parallel_size_local", "data_parallel_start_rank", "data_parallel_address")
"""Flags of engines on several hosts; with those of ALONE an external launcher distributes the engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """`length`: the reduced max_model_len if the full one does not fit. `experts`: expert parallelism."""

    layout: Layout
    length: int | None = None
    experts: bool = False


def plan_layout(config: ServeConfig) -> ParallelPlan | None:
    """The plan, which is the current layout if that is fine; None if no known layout holds the model."""
    share = recommend_share(config)  # M5 changes it at the same time
    if share is not None:
        config = _with_flags(config, {SHARE: share})
    start = _valid_layout(config)
    took = estimate_fit(config, shape=start)
    if took is None or took.fits is not False:
        # context parallelism is chosen for its KV cache
        shared = (positive_int(config.setting, "decode_context_parallel_size") or 1) > 1
        latent = _plan_latent(config, start) if is_busy(config) else None
        plan = None if shared else latent or _narrow_layout(config, start)
        return plan or ParallelPlan(layout=start)
    plan = _plan_single_gpu(config, start) or _grow_layout(config, start, took)
    if plan is None or plan.length or not is_busy(config):
        return plan
    return _plan_latent(config, plan.layout) or plan


def suggest_latent(config: ServeConfig) -> ParallelPlan | None:
    """D7: data parallel attention for the layout as given, whatever the traffic is."""
    shared = (positive_int(config.setting, "decode_context_parallel_size") or 1) > 1
    return None if shared else _plan_latent(config, _valid_layout(config))


def is_busy(config: ServeConfig) -> bool:
    """True if the known traffic is high enough that duplicated KV cache is the limit."""
    return config.profile in {"batch", "wide-ep"} or (config.concurrency or 0) > FEW


def plan_changes(config: ServeConfig) -> Mapping[Knob, Value]:
    """The flags to set for the plan; empty without a plan, or with an external launcher of engines."""
    now, plan = layout(config), plan_layout(config)
    if plan is None or (plan.layout.dp != now.dp and _is_any_given(config, ALONE)):
        return {}
    wanted = plan.layout
    sizes = {
        "tensor_parallel_size": (now.tp, wanted.tp),
        "pipeline_parallel_size": (now.pp, wanted.pp),
        "data_parallel_size": (now.dp, wanted.dp),
    }
    to: dict[Knob, Value] = {knob: new for knob, (old, new) in sizes.items() if new != old}
    if plan.length is not None and plan.length != longest_request(config):
        to["max_model_len"] = plan.length
    if to or _exceeds_memory(config, now):
        share = required_share(_with_flags(config, to))
        to |= {SHARE: share} if share is not None else {}
    if plan.experts:
        to |= {} if is_expert_parallel(config) else {"enable_expert_parallel": True}
        to |= {SHARE: MOE_SHARE} if _must_reduce_share(config, wanted) else {}
    return to


def apply_plan(config: ServeConfig) -> ServeConfig:
    """The deployment in the proposed layout."""
    to = plan_changes(config)
    after = _with_flags(config, to) if to else config
    unsure = config.gpus is None and layout(after).gpus > layout(config).gpus
    return config if unsure else after


def describe_idle_gpus(config: ServeConfig, wanted: Layout) -> str:
    """A use for the GPUs of the host that stay free; "" if no GPU does, or if that is unknown."""
    left = (config.gpus or 0) - wanted.gpus
    if left <= 0 or not is_single_host(config):
        return ""
    engines = left // (wanted.tp * wanted.pp)
    free = f"; {left} of {config.gpus} GPUs stay free"
    if not engines:
        return free
    if is_sparse(config):
        return f"{free}, for {engines} more server{'s' if engines > 1 else ''}"
    return f"{free}: --data-parallel-size {wanted.dp + engines} would use {engines * wanted.tp * wanted.pp}"


def exceeds_host(config: ServeConfig) -> bool:
    """Whether the layout needs more GPUs than the host has, or all hosts together."""
    if config.gpus is None:
        return False
    hosts = count_hosts(config) or 1
    several = hosts > 1 and not _is_any_given(config, ELSEWHERE)
    return layout(config).gpus > config.gpus * hosts and (several or is_single_host(config))


def count_hosts(config: ServeConfig) -> int | None:
    """The hosts that serve the model together, by --nnodes or by the file; None if not known."""
    return positive_int(config.setting, "nnodes") or config.hosts


def is_single_host(config: ServeConfig) -> bool:
    """Whether neither a flag nor the file involves other hosts."""
    several = (count_hosts(config) or 1) > 1 or config.ray
    launcher = text_of(config, "distributed_executor_backend") in {"ray", "external_launcher"}
    return not several and not launcher and not _is_any_given(config, ELSEWHERE)


def is_pcie_only(config: ServeConfig) -> bool:
    """Whether the GPUs are linked by PCIe only, by the GPU model or by the log."""
    logged = any(NVLINK_LOST in line for line in config.log)
    return logged or (config.card is not None and config.card.link == "pcie")


def lacks_peer_access(config: ServeConfig) -> bool:
    """Whether the driver has the GPUs copy to each other through the memory of the host."""
    return config.card is not None and config.card.name.startswith(NO_PEERS)


def is_small(model: Model) -> bool:
    return model.parameters is not None and model.parameters < SMALL


def has_padded_heads(config: ServeConfig) -> bool:
    """Whether the attention kernel pads the heads of a GPU; such models are never split."""
    return config.model is not None and any(mark in config.model.name.lower() for mark in SPARSE_MLA)


def _with_flags(config: ServeConfig, to: Mapping[Knob, Value]) -> ServeConfig:
    return replace(config, setting={**config.setting, **to})


def _is_any_given(config: ServeConfig, knobs: tuple[Knob, ...]) -> bool:
    return any(config.setting.get(knob) is not None and config.setting[knob] is not False for knob in knobs)


def _valid_layout(config: ServeConfig) -> Layout:
    """The layout if vLLM accepts it, else the nearest; without a pipeline on a host with NVLink."""
    now, most = layout(config), _host_gpus(config)
    if not why_indivisible(config.model, now.tp) and not exceeds_host(config):
        return _merge_pipeline(config, now)
    pp = now.pp if most is None or now.tp * now.pp <= most else 1
    tp = now.tp
    if why_indivisible(config.model, tp) or (most is not None and tp * pp > most):
        widest = min(most // pp if most else tp - 1, _most_shares(config.model))
        tp = next((size for size in range(widest, 0, -1) if not why_indivisible(config.model, size)), 1)
    engines = (most or now.gpus) // (tp * pp)
    engines = max(1, min(engines, now.dp) if is_sparse(config) else engines)
    return _merge_pipeline(config, Layout(tp=tp, pp=pp, dp=engines))


def _most_shares(model: Model | None) -> int:
    """The most GPUs that can share the model: each has at least one attention head, or one hidden unit."""
    return (model and (model.heads or model.hidden_size)) or WIDEST


def _merge_pipeline(config: ServeConfig, now: Layout) -> Layout:
    """D4: pipelines only between hosts and on GPUs without NVLink."""
    wide = Layout(tp=now.tp * now.pp, dp=now.dp)
    if (
        now.pp == 1
        or not is_single_host(config)
        or is_pcie_only(config)
        or why_indivisible(config.model, wide.tp)
    ):
        return now
    return now if _exceeds_memory(config, wide) else wide


def _grow_layout(config: ServeConfig, start: Layout, took: KvCacheFit) -> ParallelPlan | None:
    """The fewest GPUs that hold the model. Reduces engines only if a shorter context does not suffice."""
    keeps = took.kv_tokens >= SHORT
    shapes = [] if keeps and _host_gpus(config) is None else list(_wider_layouts(config, start, keep=keeps))
    fits = [(shape, estimate_fit(config, shape=shape)) for shape in shapes]
    held = next((shape for shape, fit in fits if fit and fit.fits), None)
    if held is not None:
        return ParallelPlan(layout=held)
    candidates = [(shape, fit) for shape, fit in ((start, took), *fits) if fit and fit.kv_tokens >= SHORT]
    candidates = candidates if keeps else candidates[::-1]
    for shape, fit in sorted(
        candidates, key=lambda candidate: is_pcie_only(config) and candidate[0].tp > PAIR
    ):
        if fit.fits is not False:
            return ParallelPlan(layout=shape)
        if (length := _shorter_context(config, fit)) is not None:
            return ParallelPlan(layout=shape, length=length)
    return None


def _wider_layouts(config: ServeConfig, start: Layout, *, keep: bool) -> Iterator[Layout]:
    """Layouts with more GPUs per engine, smallest first; `keep` keeps the number of engines."""
    most, engine = _host_gpus(config) or max(WIDEST, start.gpus), start.tp * start.pp
    sizes = {engine * 2**power for power in range(5)} | ({_host_gpus(config) or 0} if not keep else set())
    for size in sorted(sizes):
        if engine <= size <= (most // start.dp if keep else most):
            shape = _shape_engine(config, start, size)
            if shape is not None and (shape.tp, shape.pp) != (start.tp, start.pp):
                yield replace(shape, dp=max(1, min(start.dp, most // size)))


def _shape_engine(config: ServeConfig, start: Layout, size: int) -> Layout | None:
    """An engine of `size` GPUs; over PCIe a pipeline, which communicates least (vLLM's documentation)."""
    layers = config.model.layers if config.model else None
    pp = start.pp if not is_single_host(config) and size % start.pp == 0 else 1
    if is_pcie_only(config) and size > PAIR:
        narrow = start.tp if start.tp <= PAIR and size % start.tp == 0 and size > start.tp * start.pp else 1
        pp = size // narrow
    elif why_indivisible(config.model, size // pp):
        pp = size
    if (pp > 1 and layers and pp > layers) or why_indivisible(config.model, size // pp):
        return None
    return Layout(tp=size // pp, pp=pp)


def _plan_latent(config: ServeConfig, start: Layout) -> ParallelPlan | None:
    """D7: with latent attention, tensor parallelism copies the full KV cache to every GPU."""
    model = config.model
    if model is None or not model.mla or not is_sparse(config) or start.tp < LATENT or start.pp > 1:
        return None
    if config.concurrency is not None and config.concurrency <= FEW and not has_padded_heads(config):
        return None  # see D8
    copied = Layout(dp=start.tp * start.dp)
    took = estimate_fit(config, shape=copied, share=min(memory_share(config), MOE_SHARE))
    if took is not None and took.fits is False:
        return None
    return ParallelPlan(layout=copied, experts=True)


def _must_reduce_share(config: ServeConfig, wanted: Layout) -> bool:
    """M4, for a layout with expert parallelism."""
    if memory_share(config) <= MOE_SHARE or number_of(config, "kv_cache_memory_bytes"):
        return False
    took = estimate_fit(config, shape=wanted, share=MOE_SHARE)
    return took is None or took.fits is not False


def _narrow_layout(config: ServeConfig, start: Layout) -> ParallelPlan | None:
    """D1, D2 and D5: engines of fewer GPUs, or a pipeline on GPUs linked by PCIe only."""
    engine, model = start.tp * start.pp, config.model
    if engine == 1 or model is None or (start.pp > 1 and not is_single_host(config)):
        return None
    slow = is_pcie_only(config) and engine > PAIR
    if is_sparse(config) and (not slow or start.tp <= PAIR or is_expert_parallel(config) or start.dp > 1):
        return None
    for size in (1, 2, 4, 8):
        if size < engine and (shape := _split_engines(config, start, size)) is not None:
            if _has_enough_gpus(config, start, shape):
                return ParallelPlan(layout=shape)
            if size == 1 and (shorter := _plan_single_gpu(config, start)):
                return shorter
    shape = _split_engines(config, start, 1)
    smallish = (model.parameters or SMALLISH) < SMALLISH and start.tp > 1  # D2 proposes the pipeline itself
    if shape and slow and smallish and (shorter := _plan_shorter(config, shape)):
        return shorter
    pipeline = replace(start, tp=1, pp=engine)
    wide = slow and start.tp > PAIR and is_single_host(config)
    if wide and fills_pipeline(config, engine) and _holds_pipeline(config, pipeline):
        return ParallelPlan(layout=pipeline)
    return None


def fills_pipeline(config: ServeConfig, stages: int) -> bool:
    """Whether the known load keeps all stages busy: a single request takes longer with a pipeline."""
    return is_busy(config) or (config.profile != "chat" and (config.concurrency or 0) > stages)


def _plan_single_gpu(config: ServeConfig, start: Layout) -> ParallelPlan | None:
    """A small model on one GPU per engine, with a shorter context if necessary."""
    if config.model is None or not is_small(config.model) or is_sparse(config):
        return None
    shape = start if start.tp * start.pp == 1 else _split_engines(config, start, 1)
    return _plan_shorter(config, shape) if shape is not None else None


def _split_engines(config: ServeConfig, start: Layout, size: int) -> Layout | None:
    """All GPUs in engines of `size`; None if that leaves more of them idle than now."""
    shape = _shape_engine(config, replace(start, pp=1), size)
    if shape is None or is_sparse(config):
        return shape
    count = (_host_gpus(config) or max(start.gpus, layout(config).gpus)) // size
    return replace(shape, dp=count) if count * size >= start.gpus else None


def _has_enough_gpus(config: ServeConfig, start: Layout, shape: Layout) -> bool:
    """Whether `shape` has enough GPUs: by memory if the GPU is known, else by model size."""
    size, engine, model = shape.tp * shape.pp, start.tp * start.pp, config.model
    parameters = model.parameters if model else None
    took = estimate_fit(config, shape=shape)
    if took is None:
        enough = next((gpus for bound, gpus in LADDER if parameters and parameters < bound), WIDEST)
        return parameters is not None and size == enough
    if took.fits is not True:
        return False
    if took.kv_gib >= ROOMY * took.weights_gib and not is_sparse(config):
        return True
    slow = is_pcie_only(config) and (engine > PAIR or (parameters or SMALLISH) < SMALLISH)
    return slow and size <= PAIR and took.kv_tokens >= 2 * ENOUGH


def _plan_shorter(config: ServeConfig, shape: Layout) -> ParallelPlan | None:
    """The plan for `shape` with a context that fits, if the KV cache holds several requests."""
    took = estimate_fit(config, shape=shape)
    if took is None or took.kv_tokens < ENOUGH:
        return None
    if took.fits or longest_request(config) is None:
        return ParallelPlan(layout=shape)
    length = _shorter_context(config, took)
    return None if length is None and took.fits is False else ParallelPlan(layout=shape, length=length)


def _holds_pipeline(config: ServeConfig, shape: Layout) -> bool:
    layers, took = config.model.layers if config.model else None, estimate_fit(config, shape=shape)
    return bool(layers and layers >= shape.pp and took and took.fits)


def _shorter_context(config: ServeConfig, took: KvCacheFit) -> int | None:
    """The max_model_len that this KV cache holds; None if that is too short or not shorter."""
    most = longest_request(config)
    if most is None:
        return None
    own = config.model.max_len if config.model and config.model.max_len else most
    to = min(int(took.kv_tokens * SAFE) // STEP * STEP, own)
    return to if SHORT <= to < most else None


def _exceeds_memory(config: ServeConfig, shape: Layout) -> bool:
    took = estimate_fit(config, shape=shape)
    return took is not None and took.fits is False


def _host_gpus(config: ServeConfig) -> int | None:
    return config.gpus if is_single_host(config) else None
