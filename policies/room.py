"""How much KV cache a case has, and for how many requests: the arithmetic behind the lints."""

from dataclasses import dataclass

from agent.facts import Case
from policies.case import layout, sparse
from policies.case import share as share_of
from policies.defaults import whole

GIB = 2**30
USUAL = 8  # most requests are shorter than the longest: by so much, to be sure of room
SHORTEST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Of one engine. `kv_tokens` below 0: not even the weights fit."""

    weights_gib: float  # of each GPU
    kv_tokens: float


def space(case: Case, *, tp: int | None = None, share: float | None = None) -> Space | None:
    """What weights and activations leave for the KV cache; None where something is not known."""
    model, card, now = case.model, case.card, layout(case)
    tp = tp or now.tp
    if model is None or card is None or card.memory_gib is None or (sparse(case) and now.dp > 1):
        return None
    layers = model.attention_layers if model.attention_layers is not None else model.layers
    if not model.parameters or not model.weight_bytes or not layers:
        return None
    if model.mla:
        numbers = model.latent_dim
    else:
        numbers = 2 * model.kv_heads * model.head_dim if model.kv_heads and model.head_dim else None
    if not numbers:
        return None
    weights = model.parameters * model.weight_bytes / GIB / (tp * now.pp)
    left = card.memory_gib * (share if share is not None else share_of(case)) - weights - 1.5
    width = 1 if str(case.setting.get("kv_cache_dtype") or "").startswith("fp8") else 2
    shared = 1 if model.mla else min(tp, model.kv_heads or tp)
    return Space(weights_gib=weights, kv_tokens=left * GIB / (numbers * layers * width / shared / now.pp))


def kv_tokens_at(case: Case, share: float) -> float | None:
    """Tokens of KV cache at another gpu_memory_utilization; None where it is not known or none is left."""
    took = space(case, share=share)
    return took.kv_tokens if took and took.kv_tokens > 0 else None


def longest(case: Case) -> int | None:
    """max_model_len in force; None where it is not known, or vLLM is left to find it."""
    given = case.setting.get("max_model_len")
    if given is not None:
        return whole(case.setting, "max_model_len")
    return case.model.max_len if case.model else None


def fits(case: Case, *, tp: int | None = None, share: float | None = None) -> bool | None:
    """Whether the weights and one request of full length fit; None where something is not known."""
    took = space(case, tp=tp, share=share)
    return None if took is None else took.kv_tokens >= (longest(case) or SHORTEST)


def seqs_that_fit(case: Case, *, full: bool = False) -> int | None:
    """For how many requests of usual (or full) length there is KV cache; None where it is not known."""
    took, most = space(case), longest(case)
    if took is None or most is None:
        return None
    return max(0, int(took.kv_tokens // (most if full else max(SHORTEST, most // USUAL))))
