"""Requests that vLLM refused as invalid, and whether they are the long ones. Pure."""

from collections.abc import Sequence

from flettner.agent.domain.reading import RefusedRequests, Request
from flettner.primitives.quantiles import mean, quantile

INVALID = 400  # the status of vLLM's answer to a prompt that is longer than max_model_len
NEARLY_ALL = 0.9  # of the accepted requests


def summarize_refused(requests: Sequence[Request]) -> RefusedRequests | None:
    """None if no request was refused with that status."""
    refused = [request for request in requests if request.status == INVALID]
    if not refused:
        return None
    accepted = [request for request in requests if request.outcome == "ok"]
    sizes = [request.request_bytes for request in refused if request.request_bytes is not None]
    usual = [request.request_bytes for request in accepted if request.request_bytes is not None]
    counted = len(sizes) == len(refused) and len(usual) == len(accepted)
    edge = quantile(sorted(usual), NEARLY_ALL) if counted and usual else None
    return RefusedRequests(
        count=len(refused),
        accepted=len(accepted),
        longer=None if edge is None else sum(size > edge for size in sizes) / len(sizes),
        longest_bytes=max(sizes, default=None),
        accepted_bytes=mean(usual) if counted else None,
    )
