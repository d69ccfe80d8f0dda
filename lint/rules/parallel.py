"""The layout of the model on the GPUs: D1 to D5, by weights, heads and links between the GPUs.

Each rule gives its reason and its numbers; the change comes from the plan in
flettner.vllm_facts.sizing.parallel_layouts. D6 to D8, for mixtures of experts, are in experts.py.
"""

from collections.abc import Iterable, Mapping

from flettner.lint.missing_facts import ESTIMATE
from flettner.vllm_facts.models.estimate import describe_estimate
from flettner.vllm_facts.references import AMD_MOE, CONSERVING_MEMORY, OPTIMIZATION, SCALING
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, Model, Needs, ServeConfig
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    Layout,
    format_billions,
    is_sparse,
    is_split,
    json_entry,
    layout,
)
from flettner.vllm_facts.sizing.kv_cache import GIB, KvCacheFit, estimate_fit, fit_in_16_bit, longest_request
from flettner.vllm_facts.sizing.parallel_layouts import (
    LADDER,
    NVLINK_LOST,
    PAIR,
    WIDEST,
    describe_idle_gpus,
    exceeds_host,
    fills_pipeline,
    is_pcie_only,
    is_single_host,
    is_small,
    lacks_peer_access,
    plan_changes,
    plan_layout,
)
from flettner.vllm_facts.validity.split import check_heads
from flettner.vllm_facts.values import Knob, Value

BEYOND_DOUBT = 1.1  # weights to memory: also without the parts that an estimate misses
EIGHT_BIT = 1.0  # bytes of a parameter; many large checkpoints are published in FP8 under a plain name
FEW_REQUESTS = 4.0  # of full length, for which one GPU shall have room
MANY = 512  # requests at once: data parallelism wins (references.AMD_MOE)


def _check_layout(config: ServeConfig) -> Iterable[Finding]:
    now, model = layout(config), config.model
    refused = next(check_heads(config), None)
    if refused is None:
        return
    to, plan = plan_changes(config), plan_layout(config)
    expects = "it starts with more GPUs, or with a smaller model"
    if to and plan:
        expects = f"it starts, with {_describe_engines(plan.layout)}{describe_idle_gpus(config, plan.layout)}"
    yield Finding(
        rule="D3",
        klass="gated",
        severity="error",
        why=f"{refused.why}: the server does not start",
        to=to,
        expects=expects,
        risks=_describe_refusal(to) or ("fewer GPUs hold less KV cache" if to else "none"),
        source=refused.source,
        evidence={"tensor_parallel_size": now.tp, "heads": model.heads if model else None},
    )


def _describe_engines(now: Layout) -> str:
    size = f"{now.tp * now.pp} GPU{'s' if now.tp * now.pp > 1 else ''}"
    stages = f", as a pipeline of {now.pp}" if now.pp > 1 else ""
    return f"{now.dp} engine{'s' if now.dp > 1 else ''} of {size}{stages}"


def _describe_refusal(to: Mapping[Knob, Value]) -> str:
    return "longer requests than max_model_len are refused" if "max_model_len" in to else ""


def _check_too_large(config: ServeConfig) -> Iterable[Finding]:
    """D2: weights and one request do not fit the GPUs of an engine."""
    model, now, took = config.model, layout(config), estimate_fit(config)
    if model is None or why_indivisible(model, now.tp) or exceeds_host(config):
        return  # D3 reports it
    plan = plan_layout(config)
    shortens = plan is not None and plan.layout == now and plan.length is not None
    if took and took.fits is False and not shortens:  # else L1 reports it
        yield _too_large_finding(config, model, now, took)


def _check_fits_one_gpu(config: ServeConfig) -> Iterable[Finding]:
    """D1: weights and KV cache fit one GPU; the others run replicas."""
    model, now, wanted = config.model, layout(config), _smaller_layout(config)
    if model is not None and wanted is not None and wanted.tp * wanted.pp == 1:
        yield _replicas_finding(config, model, now, wanted)


def _check_needless_hosts(config: ServeConfig) -> Iterable[Finding]:
    """D1: a pipeline over several hosts, of a model that one GPU holds."""
    now, model = layout(config), config.model
    if model is None or now.pp == 1 or is_single_host(config):
        return
    alone = estimate_fit(config, shape=Layout())
    if alone is None or alone.fits is not True or (alone.full_length_sequences or 0.0) < FEW_REQUESTS:
        return
    yield Finding(
        rule="D1",
        klass="note",
        severity="warning" if is_small(model) else "info",
        why=(
            f"{model.name} is a pipeline of {now.pp} stages over several hosts, yet fits one GPU: "
            f"{_describe_need(alone)}, {alone.kv_tokens:,.0f} tokens of KV cache left"
        ),
        expects=(
            "a server of its own on each host, without Ray and the exchange of each token over the network: "
            "replicas of a plain Deployment, for example"
        ),
        risks="each server caches its own prefixes",
        evidence={"pipeline_parallel_size": now.pp} | _fit_evidence(alone),
    )


def _check_needless_stages(config: ServeConfig) -> Iterable[Finding]:
    """D2: a pipeline over more hosts than hold the model."""
    now, model = layout(config), config.model
    if model is None or now.pp == 1 or is_single_host(config) or any(_check_needless_hosts(config)):
        return
    for stages in range(1, now.pp // 2 + 1):
        took = estimate_fit(config, shape=Layout(tp=now.tp, pp=stages)) if now.pp % stages == 0 else None
        if took is None or took.fits is not True or (took.full_length_sequences or 0.0) < FEW_REQUESTS:
            continue
        size = f"{stages} of these {now.pp} stages" if stages > 1 else "one host"
        yield Finding(
            rule="D2",
            why=(
                f"{model.name} is a pipeline of {now.pp} stages over several hosts, and {size} would hold "
                f"it: {_describe_need(took)}, {took.kv_tokens:,.0f} tokens of KV cache"
            ),
            expects=(
                f"{now.pp // stages} servers of that size behind a balancer answer more requests: further "
                "stages add room for the KV cache, yet each token passes them one after the other over the "
                "network"
            ),
            risks="each server caches its own prefixes, and has a smaller KV cache",
            evidence={"pipeline_parallel_size": now.pp} | _fit_evidence(took),
        )
        return


def _check_fits_fewer_gpus(config: ServeConfig) -> Iterable[Finding]:
    """D2: fewer GPUs hold weights and KV cache; the others run replicas."""
    model, now, wanted = config.model, layout(config), _smaller_layout(config)
    if model is not None and wanted is not None and wanted.tp * wanted.pp > 1:
        yield _narrower_finding(config, model, now, wanted)


def _smaller_layout(config: ServeConfig) -> Layout | None:
    """The layout with the fewest GPUs for an engine, if the flags use more GPUs."""
    now, took = layout(config), estimate_fit(config)
    if why_indivisible(config.model, now.tp) or exceeds_host(config) or (took and took.fits is False):
        return None  # D3 and D2 report it
    if _ran_out(config) or _sends_cache(config):
        return None  # on fewer GPUs an engine has less memory; the other server of a pair has its layout, too
    plan = plan_layout(config)
    if plan is None or plan.experts or plan.layout.tp * plan.layout.pp >= now.tp * now.pp:
        return None
    small = config.model is not None and is_small(config.model)
    return None if not small and _leaves_idle(config, plan.layout) else plan.layout


def _leaves_idle(config: ServeConfig, wanted: Layout) -> bool:
    """Whether, by the log, so few requests come that further engines only make each slower."""
    most = config.start.most_at_once if config.start else None
    return most is not None and most <= wanted.dp


def _sends_cache(config: ServeConfig) -> bool:
    """Whether the server is one of a pair, of which each does a part of every request."""
    return json_entry(config, "kv_transfer_config", "kv_role") in {"kv_producer", "kv_consumer"}


def _ran_out(config: ServeConfig) -> bool:
    return config.start is not None and config.start.ran_out


def _too_large_finding(config: ServeConfig, model: Model, now: Layout, took: KvCacheFit) -> Finding:
    to, plan = fit_in_16_bit(config), plan_layout(config)
    expects = "it fits in 16 bit" if to else "quantised weights, or larger or more GPUs, fit"
    if not to and (to := plan_changes(config)) and plan:
        staged = plan.layout.pp > now.pp and is_pcie_only(config)
        expects = f"it fits as {_describe_engines(plan.layout)}"
        expects += ", the layout with the least exchange over PCIe" if staged else ""
        expects += describe_idle_gpus(config, plan.layout)
    return Finding(
        rule="D2",
        klass="gated",
        severity="error",
        why=f"{model.name} does not fit {_describe_gpus(config, now)} with one request: {took.why}",
        to=to,
        expects=expects,
        risks=_describe_refusal(to) or "more GPUs; each request waits for their exchange",
        evidence=_fit_evidence(took),
    )


def _narrower_finding(config: ServeConfig, model: Model, now: Layout, wanted: Layout) -> Finding:
    size, took = wanted.tp * wanted.pp, estimate_fit(config, shape=wanted)
    ladder = next((gpus for bound, gpus in LADDER if (model.parameters or 0) < bound), WIDEST)
    far = took is None and now.tp > 2 * ladder
    return Finding(
        rule="D2",
        klass="gated",
        severity="warning" if far or _is_slow_link(config, now) else "info",
        why=(
            f"{model.name} ({format_billions(model.parameters) if model.parameters else 'size unknown'}) "
            f"over {now.tp * now.pp} GPUs: {size} are enough "
            f"{'for weights and KV cache' if took else 'by the size ladder'}"
        ),
        to=plan_changes(config),
        expects=(
            f"more throughput for each GPU: {_describe_engines(wanted)}{describe_idle_gpus(config, wanted)}"
        ),
        risks="a single request takes longer, and each engine has a smaller KV cache",
        evidence=_fit_evidence(took),
    )


def _is_slow_link(config: ServeConfig, now: Layout) -> bool:
    return is_pcie_only(config) and now.tp > PAIR


def _replicas_finding(config: ServeConfig, model: Model, now: Layout, wanted: Layout) -> Finding:
    to, alone = plan_changes(config), estimate_fit(config, shape=wanted)
    many = (config.concurrency or 0) >= MANY
    sure = is_small(model) or is_pcie_only(config) or many
    severity: FindingSeverity = "warning" if sure and is_single_host(config) else "info"
    if _leaves_idle(config, wanted):
        severity = "info"
    size = format_billions(model.parameters) if model.parameters else "its weights"
    room = f": {_describe_need(alone)}, {alone.kv_tokens:,.0f} tokens of KV cache left" if alone else ""
    over = " over PCIe" if is_pcie_only(config) else ""
    shorter = f", not a request of all {longest_request(config):,}" if "max_model_len" in to else ""
    independent = "independent engines" if wanted.dp > 1 else "one engine"
    return Finding(
        rule="D1",
        klass="gated",
        severity=severity,
        why=f"{model.name} ({size}) is split over {now.tp * now.pp} GPUs{over}, yet fits one{room}{shorter}",
        to=to,
        expects=(
            f"{wanted.dp if wanted.dp > 1 else ''} {independent} without an exchange between GPUs in every "
            f"layer{describe_idle_gpus(config, wanted)}"
        ).lstrip(),
        risks="a single request takes longer on GPUs with NVLink; each engine caches its own prefixes"
        + ("; longer requests are refused" if shorter else ""),
        evidence={"tensor_parallel_size": now.tp, "parameters": model.parameters} | _fit_evidence(alone),
    )


def _check_pipeline(config: ServeConfig) -> Iterable[Finding]:
    now, plan = layout(config), plan_layout(config)
    if (
        now.pp == 1
        or plan is None
        or plan.layout.pp > 1
        or not is_single_host(config)
        or exceeds_host(config)
    ):
        return
    if why_indivisible(config.model, now.tp) or plan.layout.tp < now.tp * now.pp:
        return  # D3, or D1 and D2 report it
    nvlink = config.card is not None and config.card.link == "nvlink"
    yield Finding(
        rule="D4",
        klass="gated",
        severity="warning" if nvlink else "info",
        why=f"{now.pp} pipeline stages of {now.tp} GPUs on one host{' with NVLink' if nvlink else ''}: "
        "a token passes the stages one after the other",
        to=plan_changes(config),
        expects="lower ITL: all GPUs work on each layer; pipelines are meant for several hosts"
        + describe_idle_gpus(config, plan.layout),
        risks="without NVLink vLLM's own documentation prefers the pipeline: keep it there",
        evidence={"pipeline_parallel_size": now.pp, "tensor_parallel_size": now.tp},
    )


_PIPELINE = (
    "a pipeline (--pipeline-parallel-size) if many requests run at once, which --concurrency or --profile "
    "batch says; for few, tensor parallelism is faster. Else GPUs with NVLink, or quantised weights on fewer"
)


def _check_links(config: ServeConfig) -> Iterable[Finding]:
    now, plan = layout(config), plan_layout(config)
    if not _is_slow_link(config, now) or why_indivisible(config.model, now.tp) or exceeds_host(config):
        return
    to, took = plan_changes(config), estimate_fit(config)
    if not to and took is not None and took.fits is False:
        return  # D2 reports it
    expects = "GPUs with NVLink, quantised weights on fewer GPUs, or a smaller model"
    fewer = to and plan is not None and plan.layout.tp * plan.layout.pp < now.tp * now.pp
    if fewer and _ran_out(config):
        return
    if plan and fewer:
        free = describe_idle_gpus(config, plan.layout)
        expects = f"less exchange between GPUs, or none: {_describe_engines(plan.layout)}{free}"
    elif is_sparse(config) or not fills_pipeline(config, now.tp):
        to, expects = {}, _PIPELINE
    elif to and plan:
        expects = "higher throughput: stages of a pipeline exchange far less than tensor parallel GPUs"
        expects += describe_idle_gpus(config, plan.layout)
    by_log = any(NVLINK_LOST in line for line in config.log)
    slowest = lacks_peer_access(config) and config.concurrency is None
    yield Finding(
        rule="D5",
        klass="gated",
        severity="warning" if slowest or (fewer and not is_sparse(config)) else "info",
        why=(
            f"tensor parallelism over {now.tp} GPUs on PCIe{' (seen in the log)' if by_log else ''}: "
            "vLLM turns its custom all-reduce off above two, and every layer waits for the bus twice"
            + (", through the memory of the host: GeForce cards have no peer access" if slowest else "")
        ),
        to=to,
        expects=expects,
        risks="a single request takes longer" + ("" if fewer else ": keep the layout at low concurrency"),
        evidence={"tensor_parallel_size": now.tp},
    )


def _describe_need(took: KvCacheFit) -> str:
    return f"{took.weights_gib:.1f} GiB of weights for each GPU"


def _describe_gpus(config: ServeConfig, now: Layout) -> str:
    card = config.card.name if config.card else "GPU"
    return f"{now.tp * now.pp} x {card}"


def _fit_evidence(took: KvCacheFit | None) -> dict[str, Value]:
    return {"weights_gib": round(took.weights_gib, 1), "kv_tokens": round(took.kv_tokens)} if took else {}


def _check_estimated_size(config: ServeConfig) -> Iterable[Finding]:
    """D2 of an unknown model whose name states its size: a remark without a change."""
    model, card, now = config.estimate, config.card, layout(config)
    if model is None or not model.parameters or not model.weight_bytes or not card or not card.memory_gib:
        return
    if now.dp > 1 or config.setting.get("quantization") or config.setting.get("cpu_offload_gb"):
        return
    gib = model.parameters * model.weight_bytes / GIB / (now.tp * now.pp)
    if gib < card.memory_gib * BEYOND_DOUBT:
        return
    yield Finding(
        rule="D2",
        severity="info" if gib * EIGHT_BIT / model.weight_bytes < card.memory_gib else "warning",
        why=(
            f"{model.name} has {describe_estimate(model)} by its name, an estimate: {gib:.0f} GiB of weights "
            f"for each of {_describe_gpus(config, now)} with {card.memory_gib:g} GiB"
        ),
        expects="it starts with more or larger GPUs, or quantised; --model-config gives the exact numbers",
        evidence={"weights_gib": round(gib, 1)},
    )


_TOO_LARGE = f"{SCALING}; {CONSERVING_MEMORY}"

LINTS = (
    DeploymentCheck(
        rules=("D3",),
        find=_check_layout,
        reports="attention heads that cannot be shared out to the GPUs; the finding names vLLM's check",
        source="vllm/config/model.py: verify_with_parallel_config",
        needs=Needs(facts=("model", "gpus"), for_change=ESTIMATE, applies=is_split),
    ),
    DeploymentCheck(
        rules=("D2",),
        find=_check_too_large,
        reports="weights that do not fit the GPUs together with one request",
        source=_TOO_LARGE,
        needs=Needs(facts=ESTIMATE, for_change=("gpus",)),
    ),
    DeploymentCheck(
        rules=("D2",),
        find=_check_estimated_size,
        reports="weights that do not fit the GPUs, by the size in the name of an unknown model",
        source=_TOO_LARGE,
        needs=Needs(facts=("gpu", "gpu_memory"), applies=lambda config: config.estimate is not None),
    ),
    DeploymentCheck(
        rules=("D1",),
        find=_check_fits_one_gpu,
        reports="a model that is split over several GPUs, yet fits one",
        source=f"{SCALING} (a model that fits one GPU needs no distributed inference)",
        evidence_for=(
            "no more throughput of 7B with 2 and 4 GPUs (vllm-project/vllm#367), less of 13B with 4 "
            "(vllm-project/vllm#1873)"
        ),
        evidence_against=(
            f"for few requests at once tensor parallelism is faster, measured on MoE models ({AMD_MOE})"
        ),
        needs=Needs(facts=ESTIMATE, for_change=ESTIMATE, applies=is_split),
    ),
    DeploymentCheck(
        rules=("D1",),
        find=_check_needless_hosts,
        reports="a model over several hosts, yet fits one GPU",
        source=f"{SCALING} (a model that fits one GPU needs no distributed inference)",
        needs=Needs(facts=ESTIMATE, for_change=ESTIMATE, applies=is_split),
    ),
    DeploymentCheck(
        rules=("D2",),
        find=_check_needless_stages,
        reports="a pipeline over more hosts than hold the model",
        source=f"{SCALING}; huggingface/physics-intern#12",
        evidence_for=(
            "2,400 tokens/s of Kimi-K2.6 whatever the number of stages (huggingface/physics-intern#12)"
        ),
        needs=Needs(facts=ESTIMATE, for_change=ESTIMATE, applies=is_split),
    ),
    DeploymentCheck(
        rules=("D2",),
        find=_check_fits_fewer_gpus,
        reports="more GPUs for an engine than weights and KV cache need",
        source=f"{SCALING}; {OPTIMIZATION} (parallelism strategies)",
        evidence_for="no public measurement of the sizes that count where the memory cannot be estimated",
        needs=Needs(facts=ESTIMATE, for_change=ESTIMATE, applies=is_split),
    ),
    DeploymentCheck(
        rules=("D4",),
        find=_check_pipeline,
        reports="a pipeline within one host",
        source=f"{SCALING} (tensor parallelism within a host, pipelines across hosts)",
        evidence_for="no public measurement of the two layouts side by side",
        evidence_against=f"without NVLink a pipeline is preferred ({SCALING}, edge case)",
        needs=Needs(facts=("gpu", "model"), for_change=ESTIMATE, applies=is_split),
    ),
    DeploymentCheck(
        rules=("D5",),
        find=_check_links,
        reports="tensor parallelism over more than two GPUs without NVLink",
        source=(
            f"{SCALING} (no NVLink: pipeline); vllm/distributed/device_communicators/custom_all_reduce.py"
        ),
        evidence_for=(
            "1.5 instead of 30 tokens/s as soon as requests wait, with 8 RTX 4090 and not with 4 "
            "(vllm-project/vllm#17568); no public measurement of a pipeline beside it"
        ),
        needs=Needs(facts=("gpu",), for_change=ESTIMATE, applies=is_split),
    ),
)
