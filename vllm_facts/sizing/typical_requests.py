"""The length of a typical request, and unused GPU memory that such requests need."""

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    effective_seqs,
    is_pooling,
    is_sparse,
    is_transformer,
    number_of,
)
from flettner.vllm_facts.sizing.kv_cache import estimate_fit, longest_request
from flettner.vllm_facts.sizing.limits import share_limit

SHARE = "gpu_memory_utilization"
MOE_SHARE, DENSE_SHARE, LOW_SHARE = 0.85, 0.9, 0.8  # vLLM's own: 0.9 until 0.19, 0.92 since
HALF, STEP = 0.5, 5  # up to a half, another server is meant to run there, too; hundredths
WORTH = 0.05  # of a card: a smaller step is not worth a change
FEW_SEQS, SEQS_TO = 16, 128  # B1
PART = 8  # a typical request is at most this fraction of the longest
SHORTEST = 256
TYPICAL = {"rag": 4096, "api": 3072}
TYPICAL_ELSE = 2048
"""Upper bound of a typical request in tokens: documents and question 4,096, the 90th percentile of an API
3,072, chat 2,048. Assumed, not measured."""


def typical_tokens(config: ServeConfig, *, part: int = PART) -> int | None:
    """Tokens of a typical request: 1/`part` of the longest, within bounds; None if unknown."""
    most = longest_request(config)
    bound = TYPICAL.get(config.profile, TYPICAL_ELSE)
    return None if most is None else max(SHORTEST, min(most // part, bound))


def recommend_share(config: ServeConfig) -> float | None:
    """M5: the value for a given gpu_memory_utilization below 0.8; None if it is high enough."""
    given = number_of(config, SHARE)
    if given is None or given >= LOW_SHARE or config.setting.get("kv_cache_memory_bytes"):
        return None
    if _keeps_exchange_buffers(config):
        return None
    if is_pooling(config) or config.shared_card is not None:
        return _least_share(config, given)
    if given <= HALF and estimate_fit(config) is not None:
        return _least_share(config, given)
    hybrid = config.model is not None and config.model.hybrid
    wanted, limit = MOE_SHARE if is_sparse(config) or hybrid else DENSE_SHARE, share_limit(config)
    if limit is None or limit >= wanted:
        return wanted
    return limit if limit >= given + WORTH else None


def _least_share(config: ServeConfig, given: float) -> float | None:
    """The next share at which the server starts; None if it starts now, or nowhere.

    So little memory is given where others need the rest: no more than necessary is taken from them.
    """
    took, limit = estimate_fit(config), share_limit(config)
    if took is None or took.fits is not False:
        return None
    steps = (step / 100 for step in range(STEP, round(DENSE_SHARE * 100) + 1, STEP))
    for share in steps:
        fit = estimate_fit(config, share=share) if share > given else None
        if fit is not None and fit.fits:
            return share if limit is None or share <= limit else None
    return None


def _keeps_exchange_buffers(config: ServeConfig) -> bool:
    """Whether memory is left free for the buffers of experts' exchange, which vLLM does not account for."""
    backend = str(config.setting.get("all2all_backend") or config.env.get("VLLM_ALL2ALL_BACKEND") or "")
    return config.setting.get("enable_dbo") is True or backend.startswith(("deepep", "nixl_ep", "pplx"))


def required_share(config: ServeConfig) -> float | None:
    """As `recommend_share`, but None if the KV cache holds all concurrent requests.

    Assumes requests of half the longest length, within the bounds of a typical request.
    """
    seqs, fit, each = effective_seqs(config), estimate_fit(config), typical_tokens(config, part=2)
    if seqs and seqs <= FEW_SEQS and is_transformer(config):
        seqs = SEQS_TO  # B1 asks for them
    wanted = min(float(seqs), config.concurrency or float(seqs)) if seqs else config.concurrency
    if fit is not None and each is not None and wanted is not None and fit.kv_tokens // each >= wanted:
        return None
    return recommend_share(config)
