"""GPUs that share their memory with the CPU, the operating system and all programs: rules M2 and M4."""

import re
from collections.abc import Iterable

from flettner.lint.memory_causes import fills_attention_workspace
from flettner.lint.recogniser import recogniser
from flettner.lint.rules.memory import describe_kv_change
from flettner.lint.rules.out_of_memory import find_share
from flettner.vllm_facts.references import RECIPES
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    effective_batched_tokens,
    effective_seqs,
    memory_share,
    number_of,
)
from flettner.vllm_facts.sizing.limits import SEQS, SHARE, TOKENS, UNIFIED_MOST, shares_memory
from flettner.vllm_facts.start_facts import DRIVER_OUT_OF_MEMORY
from flettner.vllm_facts.values import Knob, Value

RISK = 0.9  # of the memory: above it no server starts beside an operating system
MOST_TOKENS = 32768  # of a step: the reports of hosts that hang have more
TOKENS_TO, FEW_SEQS = 8192, 16
STEPS = (0.1, 0.05)  # of the memory, by which the share is lowered if a request still fits


def _check_unified_share(config: ServeConfig) -> Iterable[Finding]:
    """M4 where the CPU uses the same memory."""
    present = memory_share(config)
    if config.start is not None and config.start.serves:
        return
    if not shares_memory(config) or present <= RISK or config.setting.get("kv_cache_memory_bytes"):
        return
    given = number_of(config, SHARE) is not None
    yield Finding(
        rule="M4",
        why=(
            f"{SHARE} {present:g}{'' if given else ' (the default)'} of memory that the operating system and "
            "all programs use, too: the server does not start where less is free, or takes the host down"
        ),
        expects=f"if less is free, lower it to {UNIFIED_MOST} or below",
        risks="a smaller KV cache" + describe_kv_change(config, UNIFIED_MOST),
        evidence={SHARE: present},
    )


def _check_unified_budget(config: ServeConfig) -> Iterable[Finding]:
    """M4: the buffers of a step lie outside the share, in memory that the system needs."""
    tokens = effective_batched_tokens(config)
    if not shares_memory(config) or tokens is None or tokens <= MOST_TOKENS:
        return
    chunked = config.setting.get("enable_chunked_prefill") is not False
    yield Finding(
        rule="M4",
        klass="gated" if chunked else "note",
        severity="warning",
        why=f"{TOKENS} {tokens} on memory that the CPU uses, too: the activations of such a step come on top "
        "of weights and KV cache, and took hosts down",
        to={TOKENS: MOST_TOKENS} if chunked else {},
        expects="the host keeps its memory; longer prompts are split over several steps",
        risks="prompts take a little longer",
        evidence={TOKENS: tokens},
    )


def _driver_ran_out(_: re.Match[str], config: ServeConfig) -> Finding | None:
    """M2: the kernel's driver reports it, not PyTorch."""
    if fills_attention_workspace(config):
        return None  # F9 knows more
    share, why = find_share(config, tuple(round(memory_share(config) - step, 2) for step in STEPS))
    tokens, seqs = effective_batched_tokens(config), effective_seqs(config)
    to: dict[Knob, Value] = {}
    if share is not None:
        to = {SHARE: share}
    elif tokens is not None and tokens > TOKENS_TO:
        to = {TOKENS: TOKENS_TO}
    elif seqs is not None and seqs > FEW_SEQS:
        to = {SEQS: FEW_SEQS}
    return Finding(
        rule="M2",
        klass="auto" if to else "note",
        severity="error",
        why="the driver found no memory (NV_ERR_NO_MEMORY), on a GPU that shares it with the CPU: the share "
        "bounds neither the profile of the start nor what other programs and caches of files hold"
        + (f"; {why}" if why else ""),
        to=to,
        expects=f"more memory is left to the system; else a smaller {TOKENS}, and the caches of files "
        "emptied before the start",
        risks="a smaller KV cache",
        source="vllm-project/vllm#56824; vllm-project/vllm#46307",
    )


LINTS = (
    DeploymentCheck(
        rules=("M4",),
        find=_check_unified_share,
        reports="gpu_memory_utilization above 0.9 where CPU and GPU use the same memory",
        source="vllm-project/recipes#632 (0.85 on a GB10)",
        evidence_against=f"other commands for a GB10 in {RECIPES} keep the default",
        evidence_for=(
            "the default does not start on a GB10 (vllm-project/recipes#632); 101 to 102 of 121.7 GiB are "
            "free there after a start (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47)"
        ),
        needs=Needs(facts=("gpu",)),
    ),
    DeploymentCheck(
        rules=("M4",),
        find=_check_unified_budget,
        reports="steps of more than 32,768 tokens where CPU and GPU use the same memory",
        source="AEON-7/vllm-dflash#1",
        evidence_for="65,536 tokens took a GB10 down, 32,768 did not (AEON-7/vllm-dflash#1)",
        needs=Needs(facts=("gpu",)),
    ),
    recogniser(
        "M2",
        DRIVER_OUT_OF_MEMORY,
        _driver_ran_out,
        reports="the driver of a GPU that shares the CPU's memory found none",
        source="vllm-project/vllm#56824; vllm-project/vllm#46307",
        evidence_for="no public measurement of the steps of 0.1 and 0.05",
    ),
)
