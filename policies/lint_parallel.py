"""How the model lies on the GPUs: D1 to D5, by weights, heads and what links the GPUs.

What a mixture of experts wants besides (D6 to D8) is in lint_experts.py.
"""

from collections.abc import Iterable, Mapping

from agent.facts import Case, Finding, Model, Severity
from agent.model import Knob, Value
from policies.case import Check, Layout, billions, layout, sparse
from policies.memory import Fit, fit, longest
from policies.room import (
    SHORT,
    WIDEST,
    crowded,
    divides,
    fits,
    idle_gpus_help,
    one_node,
    per_engine,
    wider,
)

GUIDE = "parallelism guide"
DOCS = "vLLM docs serving/parallelism_scaling.md"
SMALL = 7e9
LADDER = ((SMALL, 1), (20e9, 2), (73e9, 4))  # S4: 7, 20 and 70B; a 70B model has up to 73
PAIR = 2  # so many PCIe GPUs still have the custom all-reduce
ENOUGH = 16384  # tokens of KV cache that make a small engine worth its while
SAFE, STEP = 0.9, 1024  # of the KV cache that was estimated
MANY = 512  # requests at once: data parallel wins (S3)
NVLINK_LOST = "not supported on more than two PCIe-only GPUs"
ALONE = ("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb")


def _validity(case: Case) -> Iterable[Finding]:
    now, model = layout(case), case.model
    reason = divides(model, now.tp)
    if reason:
        why = f"--tensor-parallel-size {now.tp}: {reason} ({model.name if model else ''})"
    elif crowded(case):
        why = f"tensor {now.tp} x pipeline {now.pp} x data {now.dp} takes {now.gpus} GPUs of {case.gpus}"
    else:
        return
    knob, to = "tensor_parallel_size", _smaller(case, now)
    if not reason and case.gpus and now.tp * now.pp <= case.gpus:
        knob, to = "data_parallel_size", case.gpus // (now.tp * now.pp)
    yield Finding(
        rule="D3",
        klass="gated",
        severity="error",
        why=f"{why}: the server does not start",
        to={knob: to} if to else {},
        expects=f"it starts with {knob} {to}" if to else "it starts with more GPUs, or with a smaller model",
        risks="fewer GPUs hold less KV cache" if to else "none",
        source="rulebook D3; vLLM 0.32 config/model.py: verify_with_parallel_config",
        evidence={"tensor_parallel_size": now.tp, "heads": model.heads if model else None},
    )


def _smaller(case: Case, now: Layout) -> int | None:
    """The widest tensor parallelism below the present one that the model and the host allow."""
    below = (tp for tp in range(min(now.tp - 1, per_engine(case)), 0, -1) if not divides(case.model, tp))
    return next((tp for tp in below if fits(case, tp=tp) is not False), None)


def _size(case: Case) -> Iterable[Finding]:
    """D1 and D2: the fewest GPUs that hold weights and KV cache, the rest as replicas."""
    model, now = case.model, layout(case)
    if model is None or divides(model, now.tp) or crowded(case):
        return  # D3 says it
    took = fit(case)
    if took and took.fits is False:
        to = wider(case, most=case.gpus // now.pp if case.gpus else WIDEST)
        if took.kv_tokens < SHORT or idle_gpus_help(case):
            yield _too_large(case, model, now, to)
    elif now.tp > 1 and now.pp == 1 and not sparse(case):
        yield from _too_wide(case, model, now)


def _too_large(case: Case, model: Model, now: Layout, to: int | None) -> Finding:
    change: dict[Knob, Value] = {"tensor_parallel_size": to} if to else {}
    if to and case.gpus and to * now.pp * now.dp > case.gpus:
        change["data_parallel_size"] = max(1, case.gpus // (to * now.pp))
    stages = bool(to) and _pcie(case) and (to or 0) > PAIR >= now.tp  # D5: no wide exchange over PCIe
    if to and stages:
        change["pipeline_parallel_size"] = to // now.tp * now.pp
        del change["tensor_parallel_size"]
    took = fit(case)
    more = f"it fits {to * now.pp} GPUs to an engine" if to else "quantised weights or larger GPUs fit"
    return Finding(
        rule="D2",
        klass="gated",
        severity="error",
        why=f"{model.name} does not fit {_gpus(case, now)} with one request: {took.why if took else ''}",
        to=change,
        expects=more + (", as a pipeline, which exchanges least over PCIe" if stages else ""),
        risks="more GPUs; the answer of one request waits for their exchange",
        source=f"rulebook D2; {GUIDE} (size ladder), {DOCS}",
        evidence=_shown(took),
    )


def _too_wide(case: Case, model: Model, now: Layout) -> Iterable[Finding]:
    parameters, single = model.parameters, _single(case, model, now)
    if single is not None:
        slow = _small(model) or _pcie(case) or (case.concurrency or 0) >= MANY
        yield _replicas(case, model, now, single, "warning" if slow else "info")
        return
    to, severity = _narrower(case, parameters, now)
    if to is None or divides(model, to):
        return
    yield Finding(
        rule="D2",
        klass="gated",
        severity=severity,
        why=(
            f"{model.name} ({billions(parameters) if parameters else 'size unknown'}) over {now.tp} GPUs: "
            f"{to} are enough {'for weights and KV cache' if fit(case) else 'by the size ladder'}"
        ),
        to=_spread(case, now, to),
        expects=f"more throughput for each GPU: {now.gpus // to} engines of {to}",
        risks="a single request answers slower, and each engine has a smaller KV cache",
        source=f"rulebook D2; {GUIDE} (size ladder), serving guide (the least TP that fits), {DOCS}",
        evidence=_shown(fit(case, tp=to)),
    )


def _narrower(case: Case, parameters: float | None, now: Layout) -> tuple[int | None, Severity]:
    """Fewer GPUs that are enough: by arithmetic where the card is known, else by the ladder."""
    steps = [tp for tp in (2, 4) if tp < now.tp and now.tp % tp == 0]
    known = [tp for tp in steps if _roomy(case, now, tp)]
    if known:
        return known[0], "info"
    if parameters is None or fits(case, tp=1) is not None:
        return None, "info"
    enough = next((tp for bound, tp in LADDER if parameters < bound), WIDEST)
    return (enough, "warning" if now.tp > 2 * enough else "info") if enough in steps else (None, "info")


def _roomy(case: Case, now: Layout, tp: int) -> bool | None:
    """Whether it fits so few GPUs with half of the present KV cache left in all; None: not known."""
    fewer, present = fit(case, tp=tp), fit(case, tp=now.tp)
    if fewer is None or present is None:
        return None
    return bool(fits(case, tp=tp)) and fewer.kv_tokens * now.tp / tp >= present.kv_tokens / 2


def _single(case: Case, model: Model, now: Layout) -> Mapping[Knob, Value] | None:
    """The change to engines of one GPU; None where the model does not fit that."""
    roomy, took, spread = _roomy(case, now, 1), fit(case, tp=1), _spread(case, now, 1)
    if roomy or (took is None and _small(model)):
        return spread
    if took is None or not _small(model) or took.kv_tokens < ENOUGH:
        return None
    if took.fits or longest(case) is None or not spread:
        return spread
    return {**spread, "max_model_len": int(took.kv_tokens * SAFE) // STEP * STEP}


def _small(model: Model) -> bool:
    return model.parameters is not None and model.parameters < SMALL


def _replicas(case: Case, model: Model, now: Layout, to: Mapping[Knob, Value], severity: Severity) -> Finding:
    alone = fit(case, tp=1)
    size = billions(model.parameters) if model.parameters else "its weights"
    room = f": {_needs(model, alone)}, {alone.kv_tokens:,.0f} tokens of KV cache left" if alone else ""
    over = " over PCIe" if _pcie(case) else ""
    shorter = f", not a request of all {longest(case):,}" if "max_model_len" in to else ""
    return Finding(
        rule="D1",
        klass="gated",
        severity=severity,
        why=f"{model.name} ({size}) is split over {now.tp} GPUs{over}, yet fits one{room}{shorter}",
        to=to,
        expects=(
            f"{now.gpus // now.pp} independent engines without an exchange between GPUs in every layer "
            "(reported: 4 times the throughput of a 2B model on four PCIe GPUs, not promised)"
        ),
        risks="one request alone answers slower on GPUs with NVLink; each engine caches its own prefixes"
        + ("; longer requests are refused" if shorter else ""),
        source=f"rulebook D1; {GUIDE} #1, {DOCS}: a model that fits one GPU needs no distributed inference",
        evidence={"tensor_parallel_size": now.tp, "parameters": model.parameters} | _shown(alone),
    )


def _spread(case: Case, now: Layout, tp: int) -> Mapping[Knob, Value]:
    """The same GPUs with this tensor parallelism; empty where another launcher shares out the engines."""
    if any(case.setting.get(knob) is not None and case.setting[knob] is not False for knob in ALONE):
        return {}
    return {"tensor_parallel_size": tp, "data_parallel_size": now.dp * now.tp // tp}


def _pipeline(case: Case) -> Iterable[Finding]:
    now = layout(case)
    within = case.gpus is None or now.tp * now.pp <= case.gpus
    if now.pp == 1 or not one_node(case) or not within or _pcie(case):
        return
    to, nvlink = now.tp * now.pp, case.card is not None and case.card.link == "nvlink"
    possible = not divides(case.model, to) and fits(case, tp=to) is not False
    if not possible:  # vLLM's own use of it within a node: a model that the GPUs do not divide
        return
    yield Finding(
        rule="D4",
        klass="gated",
        severity="warning" if nvlink else "info",
        why=f"{now.pp} pipeline stages of {now.tp} GPUs on one host{' with NVLink' if nvlink else ''}: "
        "a token passes the stages one after the other",
        to={"tensor_parallel_size": to, "pipeline_parallel_size": 1},
        expects="lower ITL: all GPUs work on each layer; pipelines are for between hosts",
        risks="without NVLink vLLM's own documents prefer the pipeline: keep it there",
        source=f"rulebook D4; serving guide (PP = hosts, TP = GPUs of one); {DOCS} (edge case: no NVLink)",
        evidence={"pipeline_parallel_size": now.pp, "tensor_parallel_size": now.tp},
    )


def _links(case: Case) -> Iterable[Finding]:
    now = layout(case)
    told = any(NVLINK_LOST in line for line in case.log)
    if now.tp <= PAIR or not (_pcie(case) or told):
        return
    model = case.model
    single = _single(case, model, now) if model and not sparse(case) else None
    to: Mapping[Knob, Value] = {}
    expects = "fewer GPUs to an engine where the model fits them, or a pipeline, which exchanges less"
    if single is not None:
        to, expects = single, "no exchange between GPUs: data parallel engines instead"
    elif model and _stages(case, model, now):
        to = {"tensor_parallel_size": 1, "pipeline_parallel_size": now.tp * now.pp}
        expects = "higher throughput: stages of a pipeline exchange far less than tensor parallel GPUs"
    yield Finding(
        rule="D5",
        klass="gated",
        severity="warning",
        why=(
            f"tensor parallelism over {now.tp} GPUs on PCIe{' (the log says so)' if told else ''}: "
            "vLLM turns its custom all-reduce off for more than two, and every layer waits for the bus twice"
        ),
        to=to,
        expects=expects,
        risks="one request alone may answer slower",
        source=f"rulebook D5; {GUIDE} #1; {DOCS} (no NVLink: pipeline); vLLM 0.32 custom_all_reduce.py",
        evidence={"tensor_parallel_size": now.tp},
    )


def _stages(case: Case, model: Model, now: Layout) -> bool:
    """Whether a pipeline of all the GPUs is what vLLM's documents would have here."""
    enough = bool(model.layers) and (model.layers or 0) >= now.tp * now.pp
    return enough and not sparse(case) and fits(case, tp=1) is False and one_node(case)


def _pcie(case: Case) -> bool:
    return case.card is not None and case.card.link == "pcie"


def _needs(model: Model, took: Fit | None) -> str:
    return f"{took.weights_gib:.1f} GiB of weights for each GPU" if took else f"the weights of {model.name}"


def _gpus(case: Case, now: Layout) -> str:
    card = case.card.name if case.card else "GPU"
    return f"{now.tp * now.pp} x {card}"


def _shown(took: Fit | None) -> dict[str, Value]:
    return {"weights_gib": round(took.weights_gib, 1), "kv_tokens": round(took.kv_tokens)} if took else {}


LINTS = (
    Check(rules=("D3",), check=_validity),
    Check(rules=("D1", "D2"), check=_size),
    Check(rules=("D4",), check=_pipeline),
    Check(rules=("D5",), check=_links),
)
