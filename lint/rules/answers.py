"""Flags with which the server runs, and answers worse: rules H2 and L3."""

from collections.abc import Iterable
from math import ceil

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.models.context_limit import LENGTH, find_yarn
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.dtypes import dtype_in_force
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, has_any, text_of

CACHE = "kv_cache_dtype"
SIXTEEN_BITS = frozenset({"float16", "bfloat16"})
TOO_FAR = 1.5  # times the factor that max_model_len needs
QWEN_YARN = "https://qwen.readthedocs.io/en/latest/deployment/vllm.html"
DROP = "QwenLM/Qwen3#1567"


def _check_cache_dtype(config: ServeConfig) -> Iterable[Finding]:
    """VLLM copies keys and values bit by bit, then reads them as the other format."""
    kind, computed = text_of(config, CACHE), _dtype(config)
    latent = config.model is not None and config.model.mla  # its cache was not measured
    if kind not in SIXTEEN_BITS or computed not in SIXTEEN_BITS or kind == computed or latent:
        return
    yield Finding(
        rule="H2",
        klass="gated",
        severity="error",
        why=(
            f"--kv-cache-dtype {kind}, yet the model computes in {computed}: the cache holds the bits of "
            f"{computed} and reads them as {kind}, so the answers are fluent nonsense, without an error"
        ),
        to={CACHE: None},
        expects="a KV cache in the model's dtype: as large, and right",
        risks="none known",
        evidence={CACHE: kind, "dtype": computed},
    )


def _dtype(config: ServeConfig) -> str:
    """By the flag or the GPU; else by the checkpoint, unless its quantization chooses one."""
    forced, model = dtype_in_force(config), config.model
    capable = config.card is not None and config.card.capability is not None
    if forced or model is None or not capable or model.quantization:
        return forced
    return model.dtype


def _check_yarn(config: ServeConfig) -> Iterable[Finding]:
    yarn, longest = find_yarn(config), positive_int(config.setting, LENGTH)
    if yarn is None:
        return
    scaled = f"YaRN with factor {yarn.factor:g} scales the positions of every request, short ones, too"
    if longest is not None and longest <= yarn.original:
        yield Finding(
            rule="L3",
            klass="gated",
            severity="warning",
            why=f"{scaled}, yet max_model_len {longest:,} is within the {yarn.original:,} tokens that the "
            "model has without it",
            to=yarn.without,
            expects="the model's own quality; no request is refused that was accepted before",
            risks="none known",
            evidence={LENGTH: longest, "original": yarn.original},
        )
        return
    needed = longest / yarn.original if longest is not None else yarn.factor
    smaller = ceil(needed * 4) / 4
    less = (
        f"factor {smaller:g} reaches max_model_len {longest:,}; " if needed * TOO_FAR <= yarn.factor else ""
    )
    yield Finding(
        rule="L3",
        why=f"{scaled}: one benchmark fell from 39 to 26.5 points with factor 4 (Qwen3-8B, {DROP})",
        expects=(
            f"{less}if most requests are within {yarn.original:,} tokens, answers are better without it, or "
            "from a second server without it"
        ),
        risks=f"without it requests above {yarn.original:,} tokens are refused",
        evidence={"factor": yarn.factor, "original": yarn.original},
    )


LINTS = (
    DeploymentCheck(
        rules=("H2",),
        find=_check_cache_dtype,
        reports="a KV cache in another 16-bit format than the model",
        source="vllm-project/vllm#54338",
        needs=Needs(for_change=("model",), applies=has_any(CACHE)),
    ),
    DeploymentCheck(
        rules=("L3",),
        find=_check_yarn,
        reports="positions that YaRN scales for every request, by flags",
        source=f"{QWEN_YARN} (static YaRN); {DROP}",
        evidence_for=f"39 points without it, 26.5 with factor 4 (Qwen3-8B on Arena-Hard, {DROP})",
        evidence_against=f"long requests need it ({QWEN_YARN})",
        needs=Needs(applies=lambda config: find_yarn(config) is not None),
    ),
)
