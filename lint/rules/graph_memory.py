"""Memory that a start keeps free for CUDA graphs by an estimate that is far too high: rules F4 and F7.

vLLM captures two graphs of each kind and multiplies, although all of them share one pool.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor

from flettner.lint.recogniser import LOG, recogniser
from flettner.lint.rules.out_of_memory import COUNTS_GRAPHS
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, is_older_than, memory_share
from flettner.vllm_facts.sizing.limits import SHARE, share_limit
from flettner.vllm_facts.values import Knob, Value

_COUNTED_SINCE = (0, 21)
_IMPLAUSIBLE = 0.1  # of the GPU: the graphs of large models take a few percent
_MUCH = 0.03  # of the GPU, lost to the KV cache
_FREE = 0.04  # of the GPU, outside the share and the graphs
_UNCOUNTED_SHARE = 0.85  # with which a server of vllm-project/vllm#53013 ran, its graphs not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graphs:
    """As shares of the GPU: estimated, and taken (None: the start did not come so far)."""

    total_gib: float
    estimated: float
    taken: float | None


def _read_graphs(config: ServeConfig) -> _Graphs | None:
    """None where the log has no estimate, or the start did not use it: some releases print it unused."""
    start, card = config.start, config.card
    if start is None or start.estimated_graphs_gib is None or start.uncounted_share is not None:
        return None
    by_default = "0" if is_older_than(config, _COUNTED_SINCE) else "1"
    if config.env.get(COUNTS_GRAPHS, by_default) == "0":
        return None
    total = start.total_gib or (card.memory_gib if card else None)
    if not total:
        return None
    taken = start.captured_graphs_gib
    return _Graphs(
        total_gib=total,
        estimated=start.estimated_graphs_gib / total,
        taken=None if taken is None else taken / total,
    )


def takes_cache_for_graphs(config: ServeConfig) -> bool:
    """Whether the estimate alone explains that no memory was left for the KV cache."""
    graphs = _read_graphs(config)
    return graphs is not None and graphs.estimated >= _IMPLAUSIBLE


def _no_cache_beside_graphs(match: re.Match[str], config: ServeConfig) -> Finding | None:
    graphs = _read_graphs(config)
    if graphs is None or not takes_cache_for_graphs(config):
        return None
    limit = share_limit(config)
    share = min(memory_share(config), _UNCOUNTED_SHARE, *([] if limit is None else [limit]))
    return Finding(
        rule="F4",
        klass="gated",
        severity="error",
        why=(
            f"it did not start: {graphs.estimated * graphs.total_gib:.1f} GiB of the GPU were kept for CUDA "
            f"graphs by an estimate, {graphs.estimated:.0%} of it, and nothing was left for the KV cache"
        ),
        to=_lower(config, share),
        env={COUNTS_GRAPHS: "0"},
        expects="it starts without the estimate; the graphs take their memory outside the share",
        risks="an out of memory while graphs are captured: then fewer of them (--max-cudagraph-capture-size)",
        evidence={"line": match[0], "estimated_gib": round(graphs.estimated * graphs.total_gib, 2)},
    )


def _check_capacity(config: ServeConfig) -> Iterable[Finding]:
    """F7: the start went well, so the log tells both sizes."""
    graphs = _read_graphs(config)
    if graphs is None or graphs.taken is None or (config.start and config.start.ran_out):
        return
    present = memory_share(config)
    share = min(present, floor((1 - _FREE - graphs.taken) * 100) / 100)
    gained = graphs.estimated - (present - share)
    if graphs.estimated - graphs.taken < _MUCH or gained < _MUCH or config.shared_card is not None:
        return
    yield Finding(
        rule="F7",
        klass="gated",
        severity="warning",
        why=(
            f"{graphs.estimated * graphs.total_gib:.1f} GiB of each GPU are kept for CUDA graphs by an "
            f"estimate, and they took {graphs.taken * graphs.total_gib:.1f}: the rest is lost to the KV cache"
        ),
        to=_lower(config, share),
        env={COUNTS_GRAPHS: "0"},
        expects=(
            f"about {gained * graphs.total_gib:.1f} GiB more KV cache on each GPU (reported: 3.1 times the "
            "tokens)"
        ),
        risks="the graphs are outside the share: fewer GiB stay free for peaks and other processes",
        evidence={
            "estimated_gib": round(graphs.estimated * graphs.total_gib, 2),
            "taken_gib": round(graphs.taken * graphs.total_gib, 2),
        },
    )


def _lower(config: ServeConfig, share: float) -> dict[Knob, Value]:
    return {SHARE: share} if share < memory_share(config) else {}


_SOURCE = (
    "vllm-project/vllm#53013; vllm-project/vllm#45178; "
    "vllm/v1/worker/gpu_model_runner.py: 'Estimated CUDA graph memory'"
)
_AGAINST = "the estimate can be too low as well: 1.3 GiB where graphs took 5 to 17 (vllm-project/vllm#51590)"

LINTS = (
    recogniser(
        "F4",
        r"No available memory for the cache blocks",
        _no_cache_beside_graphs,
        reports="no memory for the KV cache beside an estimate of CUDA graphs",
        source=_SOURCE,
        evidence_for="with it and gpu_memory_utilization 0.85 it ran (vllm-project/vllm#53013)",
        evidence_against=_AGAINST,
    ),
    DeploymentCheck(
        rules=("F7",),
        find=_check_capacity,
        reports="an estimate of CUDA graphs that takes the KV cache's memory",
        source=_SOURCE,
        evidence_for="245,840 tokens became 769,888 (B200, MiniMax M2.5, vllm-project/vllm#45178)",
        evidence_against=_AGAINST,
        needs=LOG,
    ),
)
