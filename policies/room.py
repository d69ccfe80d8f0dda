"""For how many requests a case has KV cache: what the lints ask of the arithmetic in memory.py."""

from agent.facts import Case
from policies.memory import fit, longest

USUAL = 8  # most requests are shorter than the longest: by so much, to be sure of room
SHORTEST = 256


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
