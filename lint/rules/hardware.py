"""Operations that the GPU lacks or runs slowly with these flags: rules H1, H2 and H3.

FLASH_ATTN and FLASHINFER want compute capability 8.0 (vllm/v1/attention/backends/flash_attn.py,
flashinfer.py), bfloat16 too (vllm/platforms/cuda.py: check_if_supports_dtype).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from flettner.vllm_facts.deprecated_flags import ENVIRONMENT
from flettner.vllm_facts.releases.history import least_release
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.dtypes import AMPERE, dtype_in_force, type_without_float16
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    is_at_least,
    is_older_than,
    json_entry,
    remove_json_entry,
    text_of,
)
from flettner.vllm_facts.validity import attention, precision, quantization
from flettner.vllm_facts.validity.refusal import InvalidSetting, capability_text
from flettner.vllm_facts.values import Knob, Value

VARIABLE = "VLLM_ATTENTION_BACKEND"
GONE = frozenset({"XFORMERS", "TORCH_SDPA"})  # as backends of a decoder: out of vLLM's registry
SINCE_AMPERE = frozenset({"FLASH_ATTN", "FLASHINFER", *GONE})
READ = (0, 32)  # the release whose backends were read
TURING = (7, 5)  # the oldest GPUs of FLASHINFER
_INSTALLS_FLASHINFER = (0, 12)  # vLLM's requirements/cuda.txt names it since 0.11.1
HOPPER, _SINKS_CHOSEN = (9, 0), (0, 11)
_WITH_SINKS = "gpt-oss"
ONE_ENGINE = (0, 11)  # the V0 engine, whose XFORMERS read FP8 caches, is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForcedBackend:
    """A forced attention backend, and the change that unsets it."""

    name: str
    where: str
    to: Mapping[Knob, Value]
    env: Mapping[str, str | None]


def _find_forced_backend(config: ServeConfig) -> _ForcedBackend | None:
    if (name := text_of(config, "attention_backend")) and name.lower() != "auto":
        shown = f"--attention-backend {name}"
        return _ForcedBackend(name=name.upper(), where=shown, to={"attention_backend": None}, env={})
    if name := str(json_entry(config, "attention_config", "backend") or ""):
        to = remove_json_entry(config, "attention_config", "backend")
        return _ForcedBackend(name=name.upper(), where=f"attention_config.backend {name}", to=to, env={})
    if name := config.env.get(VARIABLE, ""):
        return _ForcedBackend(name=name.upper(), where=f"{VARIABLE}={name}", to={}, env={VARIABLE: None})
    return None


def _check_unsupported_backend(config: ServeConfig) -> Iterable[Finding]:
    forced = _find_forced_backend(config)
    if forced is not None and config.card and config.card.capability and _lacks_backend(config, forced):
        capability = capability_text(config.card.capability)
        yield _turing_finding(config, forced, f"{config.card.name} has compute capability {capability}")


def _check_forced_backend(config: ServeConfig) -> Iterable[Finding]:
    forced = _find_forced_backend(config)
    if forced is None or _lacks_backend(config, forced) or _may_need_backend(config, forced):
        return
    if config.card is not None and config.card.listed and config.card.capability is None:
        return  # not of CUDA, whose order of backends was read
    what = "forces"
    if _is_ignored(config, forced):
        what = f"is ignored by vLLM {config.version} (it reads --attention-backend), but would force"
    yield Finding(
        rule="H3",
        klass="gated",
        why=f"{forced.where} {what} an attention backend: vLLM chooses one by GPU, head size and dtype",
        to=forced.to,
        env=forced.env,
        expects="the backend that vLLM ranks first for this GPU",
        risks="kernels round differently: compare answers if it was chosen for that",
        evidence={"backend": forced.name},
    )


def _may_need_backend(config: ServeConfig, forced: _ForcedBackend) -> bool:
    """Whether vLLM's own choice may have no attention sinks: before 0.11 only Triton has them on Ampere."""
    capability = config.card.capability if config.card else None
    sinks = _WITH_SINKS in text_of(config, "model").lower() and forced.name.startswith("TRITON")
    old = not config.version or is_older_than(config, _SINKS_CHOSEN)
    return sinks and old and (capability is None or capability < HOPPER)


def _lacks_backend(config: ServeConfig, forced: _ForcedBackend) -> bool:
    """True if the GPU is known to be too old for the backend."""
    capability = config.card.capability if config.card else None
    return capability is not None and capability < AMPERE and _is_unsupported(config, forced.name)


def _is_ignored(config: ServeConfig, forced: _ForcedBackend) -> bool:
    """True if the variable has no effect: later versions ignore it."""
    return bool(forced.env) and ENVIRONMENT[VARIABLE].gone(config.version) is True


def _is_unsupported(config: ServeConfig, name: str) -> bool:
    if name == "FLASHINFER":
        return is_at_least(config, READ)
    return name in SINCE_AMPERE or name.startswith("FLASH_ATTN")


def _turing_finding(config: ServeConfig, forced: _ForcedBackend, card: str) -> Finding:
    dead, doubtful = _is_ignored(config, forced), forced.name in GONE and not is_at_least(config, READ)
    forces = f"is ignored by vLLM {config.version} (it reads --attention-backend)" if dead else "is forced"
    if dead:
        reason = f"{forced.name} would not run there"
    elif doubtful:
        reason = "it may not run there: 0.32 has no such backend, and earlier releases were not read"
    elif forced.name in GONE:
        reason = f"{forced.name} is no longer a backend of vLLM's decoder: the server does not start"
    else:
        reason = f"{forced.name} needs 8.0: the server does not start"
    return Finding(
        rule="H1",
        klass="gated",
        severity="warning" if doubtful or dead else "error",
        why=f"{forced.where} {forces}: {card}, {reason}",
        to=forced.to,
        env=forced.env,
        expects="vLLM chooses a backend that runs here (TRITON_ATTN with 0.32)",
        risks="none known",
        evidence={"backend": forced.name, "card": config.card.name if config.card else ""},
    )


def _check_number_formats(config: ServeConfig) -> Iterable[Finding]:
    """Dtypes and quantizations that vLLM refuses on this GPU or for this model."""
    loaded = config.start is not None and config.start.loaded  # the log knows better: a build of its own
    formats = () if loaded else quantization.CHECKS
    for check in (*formats, precision.check_bfloat16, precision.check_float16):
        yield from map(_build_refusal(config), check(config))


def _check_cache_formats(config: ServeConfig) -> Iterable[Finding]:
    for check in (precision.check_kv_cache, precision.check_fp4_cache):
        yield from map(_build_refusal(config), check(config))


def _check_cache_before_ada(config: ServeConfig) -> Iterable[Finding]:
    """Before the release that was read, the fp8 backend on Ampere depends on installed packages."""
    card, kind = config.card, text_of(config, "kv_cache_dtype")
    if card is None or card.capability is None or card.capability >= precision.ADA:
        return
    if kind not in {"fp8", "fp8_e4m3"} or is_at_least(config, attention.READ) or _has_attended(config):
        return
    if card.capability < AMPERE:
        if card.capability < TURING and is_at_least(config, ONE_ENGINE):
            yield _no_cache_before_turing(card.name, kind)
        return
    if (forced := _find_forced_backend(config)) and forced.name == "FLASHINFER":
        return
    release = config.version or least_release(config.setting)
    installed = is_at_least(replace(config, version=release), _INSTALLS_FLASHINFER)
    yield Finding(
        rule="H2",
        severity="info" if installed else "warning",
        why=(
            f"--kv-cache-dtype {kind} on {card.name} (compute capability {capability_text(card.capability)}) "
            "needs FLASHINFER: where it is missing, TRITON_ATTN ends the start with "
            "'type fp8e4nv not supported in this architecture'"
        ),
        expects="it starts with --attention-backend FLASHINFER, or without --kv-cache-dtype",
        risks="none",
    )


def _has_attended(config: ServeConfig) -> bool:
    """Whether that start computed steps, so that a backend has read the cache's format."""
    start = config.start
    return start is not None and (start.kv_gib is not None or start.kv_tokens is not None or start.serves)


def _no_cache_before_turing(card: str, kind: str) -> Finding:
    return Finding(
        rule="H2",
        klass="gated",
        severity="error",
        why=f"--kv-cache-dtype {kind} on {card}: no attention backend reads it before Turing, so it "
        "ends with an error",
        to={"kv_cache_dtype": None},
        expects="it runs, with a KV cache in the model's dtype",
        risks="the KV cache holds half as many tokens",
        source="vllm-project/vllm#35720",
    )


def _build_refusal(config: ServeConfig) -> Callable[[InvalidSetting], Finding]:
    capability = config.card.capability if config.card else None
    return lambda problem: Finding(
        rule="H2",
        klass="gated",
        severity="error",
        why=problem.why,
        to=problem.to,
        expects=problem.expects,
        risks=problem.risks,
        source=problem.source,
        evidence={"capability": capability and capability_text(capability)},
    )


def _check_upcast(config: ServeConfig) -> Iterable[Finding]:
    kind = type_without_float16(config.model)
    if not kind or config.card is None or "dtype" in config.setting or dtype_in_force(config) != "float32":
        return
    yield Finding(
        rule="H2",
        severity="warning",
        why=(
            f"{config.card.name} has no bfloat16 and vLLM refuses {kind} in float16, so it runs in float32: "
            "twice the memory and a fraction of the speed"
        ),
        expects="a GPU with compute capability 8.0 or later runs it in bfloat16",
        risks="none",
    )


_BACKEND = Needs(
    facts=("gpu", "version"),
    for_change=("gpu",),
    applies=lambda config: _find_forced_backend(config) is not None,
)

LINTS = (
    DeploymentCheck(
        rules=("H1",),
        find=_check_unsupported_backend,
        reports="a forced attention backend that a GPU of compute capability below 8.0 lacks",
        source=(
            "vllm/v1/attention/backends/flash_attn.py: supports_compute_capability; "
            "vllm/v1/attention/backends/flashinfer.py: supports_compute_capability; "
            "flashinfer-ai/flashinfer#3620"
        ),
        needs=_BACKEND,
    ),
    DeploymentCheck(
        rules=("H3",),
        find=_check_forced_backend,
        reports="any forced attention backend",
        source="vllm/platforms/cuda.py: _get_backend_priorities",
        evidence_for="no public measurement that vLLM's own choice is the fastest",
        needs=_BACKEND,
    ),
    DeploymentCheck(
        rules=("H2",),
        find=_check_number_formats,
        reports="a dtype or quantization that this GPU or model does not have",
        source=(
            "vllm/platforms/cuda.py: check_if_supports_dtype; vllm/config/vllm.py: _get_quantization_config"
        ),
        needs=Needs(facts=("gpu",), applies=has_any("dtype", "quantization")),
    ),
    DeploymentCheck(
        rules=("H2",),
        find=_check_cache_formats,
        reports="a format of the KV cache that no attention backend has on this GPU",
        source="vllm/platforms/cuda.py: 'No valid attention backend found'",
        needs=Needs(facts=("gpu", "version"), applies=has_any("kv_cache_dtype")),
    ),
    DeploymentCheck(
        rules=("H2",),
        find=_check_cache_before_ada,
        reports="a KV cache in fp8 on Ampere, which only FLASHINFER reads",
        source="vllm-project/vllm#26431; vllm-project/vllm#45829",
    ),
    DeploymentCheck(
        rules=("H2",),
        find=_check_upcast,
        reports="a model that vLLM refuses in float16, on a GPU without bfloat16",
        source=(
            "vllm/config/model.py: _resolve_auto_dtype; vllm/config/model.py: _FLOAT16_NOT_SUPPORTED_MODELS"
        ),
    ),
)
