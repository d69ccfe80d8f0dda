"""On how many GPUs, and for how many requests, a case fits: what lints ask of the arithmetic in memory.py."""

from agent.facts import Case, Model
from policies.case import layout, text
from policies.defaults import whole
from policies.memory import fit, longest

USUAL = 8  # most requests are shorter than the longest: by so much, to be sure of room
SHORTEST = 256
SHORT = 2048  # tokens of KV cache; with more a shorter context would do
WIDEST = 8
ELSEWHERE = (
    "data_parallel_size_local",
    "data_parallel_rank",
    "data_parallel_start_rank",
    "data_parallel_address",
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
)
"""Flags of engines that run on other hosts, too."""


def fits(case: Case, *, tp: int | None = None, share: float | None = None) -> bool | None:
    """Whether the weights and one request of full length fit; None where that is not known or too close."""
    found = fit(case, tp=tp, share=share)
    return found.fits if found else None


def kv_tokens_at(case: Case, share: float) -> int | None:
    """Tokens of KV cache at another gpu_memory_utilization; None where it is not known or none is left."""
    found = fit(case, share=share)
    return found.kv_tokens or None if found else None


def seqs_that_fit(case: Case, *, part: int = USUAL) -> int | None:
    """For how many requests of a `part`-th of the longest there is KV cache; None where it is not known."""
    found, most = fit(case), longest(case)
    if found is None or most is None:
        return None
    return found.kv_tokens // max(SHORTEST, most // part)


def divides(model: Model | None, tp: int) -> str:
    """Why the model cannot be split `tp` ways; "" when it can, or nothing is known against it."""
    if model is None:
        return ""
    for size, what in ((model.heads, "attention heads"), (model.hidden_size, "hidden units")):
        if size and size % tp:
            return f"{size} {what} cannot be shared out to {tp} GPUs"
    kv = model.kv_heads
    if kv and not model.mla and kv % tp and tp % kv:
        return f"{kv} KV heads can neither be shared out nor copied to {tp} GPUs"
    return ""


def crowded(case: Case) -> bool:
    """Whether the layout takes more GPUs than there are."""
    return case.gpus is not None and layout(case).gpus > case.gpus and one_node(case)


def per_engine(case: Case) -> int:
    """The widest tensor parallelism that the GPUs of the host leave, pipelines and engines given."""
    now = layout(case)
    return max(1, case.gpus // (now.pp * now.dp)) if case.gpus else WIDEST


def one_node(case: Case) -> bool:
    """Whether nothing says that other hosts take part."""
    several = (whole(case.setting, "nnodes") or 1) > 1
    given = (case.setting.get(knob) for knob in ELSEWHERE)
    shared = any(value is not None and value is not False for value in given)
    return (
        not several
        and not shared
        and text(case, "distributed_executor_backend") not in {"ray", "external_launcher"}
    )


def wider(case: Case, *, most: int) -> int | None:
    """The least tensor parallelism above the present one that fits, of at most so many GPUs."""
    steps = (tp for tp in (2, 4, 8, 16) if layout(case).tp < tp <= most and not divides(case.model, tp))
    return next((tp for tp in steps if fits(case, tp=tp)), None)


def idle_gpus_help(case: Case) -> bool:
    """Whether the host has GPUs that are not used and with which it would fit."""
    return case.gpus is not None and wider(case, most=per_engine(case)) is not None
