"""The highest values that the log or the file of a server allows: what is known binds every formula."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor

from flettner.vllm_facts.serve_config import ServeConfig, SharedCard
from flettner.vllm_facts.sizing.effective_flags import (
    effective_batched_tokens,
    effective_seqs,
    memory_share,
    number_of,
)
from flettner.vllm_facts.sizing.kv_cache import longest_request
from flettner.vllm_facts.start_facts import StartFacts
from flettner.vllm_facts.values import Knob

SHARE, LENGTH, SEQS, TOKENS = (
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
)
MOST_SHARE = 0.95  # safe up to it: vllm-project/vllm#1298
RESERVE = 0.01  # of a card: kept free of what the log says is free
SHARED_MEMORY = ("GB10", "Jetson Orin", "Jetson Thor", "Radeon 8060S")
UNIFIED_MOST = 0.85  # of memory that the CPU uses, too: vllm-project/recipes#632
COPIES = "data_parallel_size"
CONTEXT = 0.02  # of a card: the CUDA context of each further process, 0.3 to 0.5 GiB of 24


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest value, and the fact behind it in words."""

    value: float | int
    why: str


_OF_PROCESS = Limit(
    1,
    "LLM(…) or a replica of Ray Serve runs one copy; more are more of these (vllm/entrypoints/llm.py)",
)


def find_limits(config: ServeConfig) -> Mapping[Knob, Limit]:
    """For each knob that a fact limits, its lowest limit."""
    limits: dict[Knob, Limit] = {}
    start = config.start
    rows = [
        *_card_limits(config.shared_card),
        *_unified_limits(config),
        *([(COPIES, _OF_PROCESS)] if config.in_process else ()),
        *(_start_limits(config, start) if start is not None else ()),
    ]
    for knob, limit in rows:
        if knob not in limits or limit.value < limits[knob].value:
            limits[knob] = limit
    return limits


def has_limits(config: ServeConfig) -> bool:
    return (
        config.start is not None
        or config.shared_card is not None
        or shares_memory(config)
        or config.in_process
    )


def shares_memory(config: ServeConfig) -> bool:
    """Whether the CPU uses the same memory as the GPU."""
    return config.card is not None and config.card.name.startswith(SHARED_MEMORY)


def share_limit(config: ServeConfig) -> float | None:
    """The highest gpu_memory_utilization that the facts allow; None without such a fact."""
    if not has_limits(config):
        return None
    limit = find_limits(config).get(SHARE)
    return None if limit is None else limit.value


def fair_share(card: SharedCard) -> float:
    """The share of a server where those of one GPU add up to more than it has.

    A small share stays; the larger ones get equal parts of the rest.
    """
    shares = sorted((card.own, *(other.share for other in card.others)))
    room = 1 - CONTEXT * len(shares)
    for place, share in enumerate(shares):
        part = room / (len(shares) - place)
        if share > part:
            return round_share(min(card.own, part))
        room -= share
    return card.own


def is_overfull(card: SharedCard) -> bool:
    return card.own + sum(other.share for other in card.others) > 1


def name_others(card: SharedCard) -> str:
    """`embedder (0.15) and reranker (0.1)`"""
    return " and ".join(f"{other.name} ({other.share:g})" for other in card.others)


def value_in_force(config: ServeConfig, knob: Knob) -> float | None:
    """The value of a knob that facts may limit, or vLLM's default; None if unknown."""
    if knob == SHARE:
        return memory_share(config)
    if knob == COPIES:
        return number_of(config, knob) or 1
    known = {LENGTH: longest_request, SEQS: effective_seqs, TOKENS: effective_batched_tokens}
    return known[knob](config)


def round_length(tokens: int) -> int:
    """Down to a multiple of 1,024 tokens; smaller numbers stay."""
    return tokens // 1024 * 1024 or tokens


def round_share(share: float) -> float:
    """Down to hundredths, as shares are written."""
    return floor(round(share * 100, 6)) / 100


def _card_limits(card: SharedCard | None) -> list[tuple[Knob, Limit]]:
    """Each server of a GPU may take its part of what they leave together, as all may be raised at once."""
    if card is None:
        return []
    count = 1 + len(card.others)
    spare = 1 - card.own - sum(other.share for other in card.others) - CONTEXT * count
    share = fair_share(card) if is_overfull(card) else round_share(card.own + max(0.0, spare) / count)
    return [(SHARE, Limit(share, f"the GPU is shared with {name_others(card)}"))]


def _unified_limits(config: ServeConfig) -> list[tuple[Knob, Limit]]:
    """A share that is given may stay: its host may leave more to the GPU than most do."""
    if not shares_memory(config):
        return []
    share = max(UNIFIED_MOST, number_of(config, SHARE) or 0.0)
    return [(SHARE, Limit(share, "the operating system and all programs use the same memory"))]


def _start_limits(config: ServeConfig, start: StartFacts) -> list[tuple[Knob, Limit]]:
    limits: list[tuple[Knob, Limit]] = []
    if start.total_gib and start.free_gib is not None:
        share = round_share(start.free_gib / start.total_gib - RESERVE)
        why = f"the log says that {start.free_gib:g} of {start.total_gib:g} GiB are free"
        limits.append((SHARE, Limit(max(0.0, share), why)))
    if start.total_gib and start.others_gib is not None and start.others_gib > CONTEXT * start.total_gib:
        share = round_share(1 - start.others_gib / start.total_gib - RESERVE)
        why = f"the log says that other processes hold {start.others_gib:.1f} of {start.total_gib:g} GiB"
        limits.append((SHARE, Limit(max(0.0, share), why)))
    if start.longest:
        why = f"the log says that the KV cache holds {start.longest:,} tokens of one request"
        limits.append((LENGTH, Limit(round_length(start.longest), why)))
    if start.warm_up_seqs:
        why = f"the log says out of memory with {start.warm_up_seqs} requests"
        limits.append((SEQS, Limit(max(1, start.warm_up_seqs - 1), why)))
    if start.state_blocks:
        why = f"the log says that the Mamba cache has {start.state_blocks} blocks"
        limits.append((SEQS, Limit(start.state_blocks, why)))
    if start.ran_out and start.stage != "load":
        limits += _limits_of_out_of_memory(config, start)
    return limits


def _limits_of_out_of_memory(config: ServeConfig, start: StartFacts) -> list[tuple[Knob, Limit]]:
    """Where memory ran out, nothing that takes it is raised above the values of that start."""
    then = replace(config, setting=start.setting)
    return [
        (knob, Limit(value, f"the log says out of memory with {knob} {value:g}"))
        for knob in (SHARE, SEQS, TOKENS, LENGTH)
        if (value := value_in_force(then, knob)) is not None
    ]
