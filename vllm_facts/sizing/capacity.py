"""The number of requests for which a deployment has KV cache.

Computed for the layout that parallel_layouts.py proposes, so that a finding also holds after that change.
"""

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.kv_cache import estimate_fit, longest_request
from flettner.vllm_facts.sizing.parallel_layouts import apply_plan
from flettner.vllm_facts.sizing.typical_requests import typical_tokens

MARGIN = 1.5  # of an estimate, where a server that starts shall not be kept from it


def fits_in_memory(config: ServeConfig, *, share: float | None = None) -> bool | None:
    """Whether the weights and one request of full length fit; None if unknown or too close."""
    fit = estimate_fit(apply_plan(config), share=share)
    return fit.fits if fit else None


def kv_tokens_at(config: ServeConfig, share: float) -> int | None:
    """Tokens of KV cache at another gpu_memory_utilization; None if unknown or 0."""
    fit = estimate_fit(apply_plan(config), share=share)
    return fit.kv_tokens or None if fit else None


def seqs_that_fit(config: ServeConfig, *, tokens: int | None = None) -> int | None:
    """Requests of `tokens` (default: typical) that fit the KV cache of an engine; None if unknown."""
    config = apply_plan(config)
    fit, each = estimate_fit(config), tokens or typical_tokens(config)
    return None if fit is None or each is None else fit.kv_tokens // each


def surely_starts_at(config: ServeConfig, share: float) -> bool | None:
    """Whether a lower gpu_memory_utilization still has room for a request of full length.

    None if it cannot be estimated. The estimate leaves out buffers of which the model's file says
    nothing: it was up to 1.44 times what vLLM measured (a hybrid of 27B at 0.97 on 32 GB).
    """
    tokens, most = kv_tokens_at(config, share), longest_request(apply_plan(config))
    return None if tokens is None or most is None else tokens >= MARGIN * most
