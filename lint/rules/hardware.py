"""Operations that the GPU lacks or runs slowly with these flags: rules H1, H2, H3, E1 and E2.

vLLM 0.32: FLASH_ATTN and FLASHINFER want compute capability 8.0 (v1/attention/backends/flash_attn.py,
flashinfer.py), bfloat16 too (platforms/cuda.py: check_if_supports_dtype).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from vllm_facts.deployment import Deployment, Finding, Needs
from vllm_facts.deprecated_flags import ENVIRONMENT
from vllm_facts.sizing.dtypes import AMPERE, dtype_in_force, type_without_float16
from vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    is_at_least,
    is_older_than,
    json_entry,
    release_number,
    remove_json_entry,
    text_of,
)
from vllm_facts.validity import attention, precision, quantization
from vllm_facts.validity.refusal import InvalidSetting, capability_text
from vllm_facts.values import Knob, Value

VARIABLE = "VLLM_ATTENTION_BACKEND"
GONE = frozenset({"XFORMERS", "TORCH_SDPA"})  # as backends of a decoder: out of vLLM's registry
SINCE_AMPERE = frozenset({"FLASH_ATTN", "FLASHINFER", *GONE})
READ = (0, 32)  # the version whose backends were read; a T4 ran FLASHINFER with 0.14.1
OLD = (0, 14)
TURING = (7, 5)  # the oldest GPUs of FLASHINFER
ONE_ENGINE = (0, 11)  # the V0 engine, whose XFORMERS read FP8 caches, is gone
CUDA_13_SINCE, OLDEST_BUILT = (0, 20), (7, 5)
AWQ_FORCED_UP_TO = (0, 20)  # by 0.32 awq, awq_marlin and auto_awq are one; 0.11 to 0.19 obey the name
S0 = "T4 benchmark report"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForcedBackend:
    """A forced attention backend, and the change that unsets it."""

    name: str
    where: str
    to: Mapping[Knob, Value]
    env: Mapping[str, str | None]


def _find_forced_backend(case: Deployment) -> _ForcedBackend | None:
    if (name := text_of(case, "attention_backend")) and name.lower() != "auto":
        shown = f"--attention-backend {name}"
        return _ForcedBackend(name=name.upper(), where=shown, to={"attention_backend": None}, env={})
    if name := str(json_entry(case, "attention_config", "backend") or ""):
        to = remove_json_entry(case, "attention_config", "backend")
        return _ForcedBackend(name=name.upper(), where=f"attention_config.backend {name}", to=to, env={})
    if name := case.env.get(VARIABLE, ""):
        return _ForcedBackend(name=name.upper(), where=f"{VARIABLE}={name}", to={}, env={VARIABLE: None})
    return None


def _check_attention_backend(case: Deployment) -> Iterable[Finding]:
    forced = _find_forced_backend(case)
    if forced is None:
        return
    capability = case.card.capability if case.card else None
    if case.card and capability and capability < AMPERE and _is_unsupported(case, forced.name):
        yield _turing_finding(
            case, forced, f"{case.card.name} has compute capability {capability[0]}.{capability[1]}"
        )
        return
    what = "forces"
    if _is_ignored(case, forced):
        what = f"is ignored by vLLM {case.version} (it reads --attention-backend), but would force"
    yield Finding(
        rule="H3",
        klass="gated",
        severity="info",
        why=f"{forced.where} {what} an attention backend: vLLM chooses one by GPU, head size and dtype",
        to=forced.to,
        env=forced.env,
        expects="the backend that vLLM ranks first for this GPU",
        risks="kernels round differently: compare answers if it was chosen for that",
        source=f"rulebook H3; {S0} §3; vLLM 0.32 platforms/cuda.py ranks the backends",
        evidence={"backend": forced.name},
    )


def _is_ignored(case: Deployment, forced: _ForcedBackend) -> bool:
    """True if the variable has no effect: later versions ignore it."""
    return bool(forced.env) and ENVIRONMENT[VARIABLE].gone(case.version) is True


def _is_unsupported(case: Deployment, name: str) -> bool:
    if name == "FLASHINFER":
        return is_at_least(case, READ)
    return name in SINCE_AMPERE or name.startswith("FLASH_ATTN")


def _turing_finding(case: Deployment, forced: _ForcedBackend, card: str) -> Finding:
    dead, doubtful = _is_ignored(case, forced), forced.name in GONE and not is_at_least(case, READ)
    forces = f"is ignored by vLLM {case.version} (it reads --attention-backend)" if dead else "is forced"
    if dead:
        reason = f"{forced.name} would not run there"
    elif doubtful:
        reason = "reported as refused by a build of 0.12 and accepted by 0.14.1; 0.32 has no such backend"
    elif forced.name in GONE:
        reason = f"{forced.name} is no longer a backend of vLLM's decoder: the server does not start"
    else:
        reason = f"{forced.name} needs 8.0: the server does not start"
    chosen = "TRITON_ATTN" if is_at_least(case, READ) else "FLASHINFER with 0.14, TRITON_ATTN with 0.32"
    return Finding(
        rule="H1",
        klass="gated",
        severity="warning" if doubtful or dead else "error",
        why=f"{forced.where} {forces}: {card}, {reason}",
        to=forced.to,
        env=forced.env,
        expects=f"vLLM chooses a backend that runs here ({chosen})",
        risks="none known",
        source=(
            f"rulebook H1; {S0} §3 (which found FLASHINFER best on a T4 with 0.14.1; vLLM 0.32 keeps "
            "FLASHINFER from Turing until flashinfer#3620 is fixed: v1/attention/backends/flashinfer.py)"
        ),
        evidence={"backend": forced.name, "card": case.card.name if case.card else ""},
    )


def _check_number_formats(case: Deployment) -> Iterable[Finding]:
    """Dtypes and quantizations that vLLM refuses on this GPU or for this model."""
    for check in (*quantization.CHECKS, precision.check_bfloat16, precision.check_float16):
        yield from map(_build_refusal(case), check(case))


def _check_cache_formats(case: Deployment) -> Iterable[Finding]:
    yield from map(_build_refusal(case), precision.check_kv_cache(case))


def _check_cache_before_ada(case: Deployment) -> Iterable[Finding]:
    """Before the release that was read, the backend for fp8 on Ampere depends on what is installed."""
    card, kind = case.card, text_of(case, "kv_cache_dtype")
    if card is None or card.capability is None or card.capability >= precision.ADA:
        return
    if kind not in {"fp8", "fp8_e4m3"} or is_at_least(case, attention.READ):
        return
    if card.capability < AMPERE:
        if card.capability < TURING and is_at_least(case, ONE_ENGINE):
            yield _no_cache_before_turing(card.name, kind)
        return
    if (forced := _find_forced_backend(case)) and forced.name == "FLASHINFER":
        return
    yield Finding(
        rule="H2",
        klass="note",
        severity="warning",
        why=(
            f"--kv-cache-dtype {kind} on {card.name} (compute capability {capability_text(card.capability)}) "
            "needs FLASHINFER: where it is missing, TRITON_ATTN ends the start with "
            "'type fp8e4nv not supported in this architecture'"
        ),
        expects="it starts with --attention-backend FLASHINFER, or without --kv-cache-dtype",
        risks="none",
        source="rulebook H2; vllm-project/vllm#26431, vllm-project/vllm#45829",
    )


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
        source="rulebook H2; vllm-project/vllm#35720",
    )


def _build_refusal(case: Deployment) -> Callable[[InvalidSetting], Finding]:
    capability = case.card.capability if case.card else None
    return lambda problem: Finding(
        rule="H2",
        klass="gated",
        severity="error",
        why=problem.why,
        to=problem.to,
        expects=problem.expects,
        risks=problem.risks,
        source=f"rulebook H2; {problem.source}",
        evidence={"capability": capability and capability_text(capability)},
    )


def _check_upcast(case: Deployment) -> Iterable[Finding]:
    kind = type_without_float16(case.model)
    if not kind or case.card is None or "dtype" in case.setting or dtype_in_force(case) != "float32":
        return
    yield Finding(
        rule="H2",
        klass="note",
        severity="warning",
        why=(
            f"{case.card.name} has no bfloat16 and vLLM refuses {kind} in float16, so it runs in float32: "
            "twice the memory and a fraction of the speed"
        ),
        expects="a GPU with compute capability 8.0 or later runs it in bfloat16",
        risks="none",
        source="rulebook H2; vLLM 0.32 config/model.py: _resolve_auto_dtype, _FLOAT16_NOT_SUPPORTED_MODELS",
    )


def _check_volta(case: Deployment) -> Iterable[Finding]:
    capability = case.card.capability if case.card else None
    if (
        case.card is None
        or capability is None
        or capability >= OLDEST_BUILT
        or not is_at_least(case, CUDA_13_SINCE)
    ):
        return
    yield Finding(
        rule="E1",
        klass="note",
        severity="warning",
        why=(
            f"{case.card.name} has compute capability {capability[0]}.{capability[1]}: vLLM's own wheels and "
            f"images since 0.20 are built for {OLDEST_BUILT[0]}.{OLDEST_BUILT[1]} and later"
        ),
        expects="it runs with a custom build for CUDA 12, or with a release before 0.20",
        risks="flags were renamed and removed since: lint the command line again for that version",
        source="rulebook E1; vllm-project/vllm#39878 (CUDA 13), #42381 (what 0.20.1 is built for)",
        evidence={"version": case.version},
    )


def _check_engine_version(case: Deployment) -> Iterable[Finding]:
    vendor = next((name for name in sorted(case.env) if name.startswith("NIM_")), "")
    nim = vendor or any("nvcr.io/nim" in line or "nvcr.io/nvidia/nim" in line for line in case.log)
    known = release_number(case)
    before_ampere = bool(case.card and case.card.capability and case.card.capability < AMPERE)
    if nim and (known is None or known < OLD):
        mark = f"{vendor} is set" if vendor else "its log names an image of nvcr.io"
        why = f"this is NVIDIA's NIM build of vLLM {case.version or 'of unknown version'} ({mark})"
        reported = "reported: 4.4 tokens/s with NIM vLLM 0.12.0 where community 0.14.1 gave 42 (T4, AWQ 8B)"
    elif known is not None and known < OLD:
        why = f"vLLM {case.version} is older than 0.14"
        reported = (
            "reported: a build of 0.12.0 gave 4.4 tokens/s where 0.14.1 gave 42 (T4, AWQ 8B, NIM image)"
        )
    else:
        return
    yield Finding(
        rule="E1",
        klass="note",
        severity="warning" if nim or before_ampere else "info",
        why=f"{why}: it lacks the Marlin kernels for older GPUs and async scheduling by default (since 0.14)",
        expects=f"a current community release is faster; {reported}, not promised here",
        risks="flags were renamed and removed since: lint the command line again for the new version",
        source=f"rulebook E1; {S0} §1; vLLM 0.14 made async scheduling the default",
        evidence={"version": case.version},
    )


_EXLLAMA = re.compile(r"Using (Exllama\w*)\b")
_NOT_OPTIMIZED = re.compile(r"(\w+) quantization is not fully optimized yet|so forcing (awq|gptq)\b")


def _check_kernel(case: Deployment) -> Iterable[Finding]:
    line = next((line for line in case.log if _EXLLAMA.search(line) or _NOT_OPTIMIZED.search(line)), "")
    given = text_of(case, "quantization").lower()
    by_name = given == "awq" and is_older_than(case, AWQ_FORCED_UP_TO)
    if by_name:
        why = (
            f"--quantization awq with vLLM {case.version}: this forces the slow awq kernel; "
            "without the flag vLLM chooses Marlin"
        )
    elif line:
        found = _EXLLAMA.search(line)
        kernel = found[1] if found else "a kernel that vLLM reports as not fully optimized"
        why = f"according to the log the quantized weights run on {kernel}, a slow fallback"
    else:
        return
    yield Finding(
        rule="E2",
        klass="gated",
        severity="warning",
        why=why,
        to={"quantization": None} if given in {"awq", "gptq"} else {},
        expects=(
            "MarlinLinearKernel, or a compressed-tensors checkpoint that gets it; "
            "reported on a T4: 30 to 42 tokens/s instead of 4.4, not promised here"
        ),
        risks="another kernel rounds differently: check answers once",
        source=(
            f"rulebook E2; {S0} §2; vLLM up to 0.19 model_executor/layers/quantization/awq_marlin.py: "
            "'you specified quantization=awq explicitly, so forcing awq'"
        ),
        evidence={"quantization": given or "not given"},
    )


LINTS = (
    DeploymentCheck(
        rules=("H1", "H3"),
        check=_check_attention_backend,
        needs=Needs(
            facts=("gpu", "version"),
            for_change=("gpu",),
            applies=lambda case: _find_forced_backend(case) is not None,
        ),
    ),
    DeploymentCheck(
        rules=("H2",),
        check=_check_number_formats,
        needs=Needs(facts=("gpu",), applies=has_any("dtype", "quantization")),
    ),
    DeploymentCheck(
        rules=("H2",),
        check=_check_cache_formats,
        needs=Needs(facts=("gpu", "version"), applies=has_any("kv_cache_dtype")),
    ),
    DeploymentCheck(rules=("H2",), check=_check_cache_before_ada),
    DeploymentCheck(rules=("H2",), check=_check_upcast),
    DeploymentCheck(rules=("E1",), check=_check_volta, needs=Needs(facts=("gpu", "version"))),
    DeploymentCheck(rules=("E1",), check=_check_engine_version, needs=Needs(facts=("version",))),
    DeploymentCheck(
        rules=("E2",), check=_check_kernel, needs=Needs(facts=("version",), applies=has_any("quantization"))
    ),
)
