"""For how many requests a case has KV cache: what lints ask of the arithmetic in memory.py. Pure.

Asked of the layout that layouts.py proposes: what is said beside a change of layout shall hold after it.
"""

from vllm_facts.deployment import Deployment
from vllm_facts.sizing.kv_cache import fit
from vllm_facts.sizing.parallel_layouts import settled
from vllm_facts.sizing.typical_requests import usual


def fits(case: Deployment, *, share: float | None = None) -> bool | None:
    """Whether the weights and one request of full length fit; None where that is not known or too close."""
    found = fit(settled(case), share=share)
    return found.fits if found else None


def kv_tokens_at(case: Deployment, share: float) -> int | None:
    """Tokens of KV cache at another gpu_memory_utilization; None where it is not known or none is left."""
    found = fit(settled(case), share=share)
    return found.kv_tokens or None if found else None


def seqs_that_fit(case: Deployment, *, tokens: int | None = None) -> int | None:
    """For how many requests of so many tokens (else: usual ones) an engine has KV cache; None: not known."""
    case = settled(case)
    found, each = fit(case), tokens or usual(case)
    return None if found is None or each is None else found.kv_tokens // each
