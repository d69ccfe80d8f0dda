"""Environment variables and network exposure: rules U1, U2, U3 and R1."""

import ipaddress
from collections.abc import Iterable, Mapping

from vllm_facts.deployment import Deployment, Finding, Launcher, Needs
from vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    is_at_least,
    is_sparse,
    layout,
    patch_number,
    text_of,
)
from vllm_facts.values import ChangeClass

TUNING = "vLLM performance-tuning reference"
DEEP_GEMM = "VLLM_MOE_USE_DEEP_GEMM"
DEEP_GEMM_FIXED = (0, 19, 1)
FEW = 16  # requests at once; reported at 8 and fewer
AITER = "VLLM_ROCM_USE_AITER"
CUMEM = "NCCL_CUMEM_ENABLE"
COMPILE_CACHE = "VLLM_DISABLE_COMPILE_CACHE"
KEYED_SINCE = (0, 32)  # the newest that was read; earlier ones may hold it too
HAND_TUNED = frozenset(
    {
        CUMEM,
        "NCCL_ALGO",
        "NCCL_BUFFSIZE",
        "NCCL_MAX_CTAS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MIN_CTAS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_PROTO",
        "NCCL_SHM_DISABLE",
    }
)
"""Variables that control NCCL's transport. Those that name interfaces (NCCL_IB_HCA …) depend on the site."""
HARMLESS = {"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0", CUMEM: "1"}
"""Values that equal the default."""

SHARED_MEMORY: Mapping[Launcher, tuple[str, str]] = {
    "docker run": (
        "docker run has neither --ipc=host nor --shm-size",
        "add --ipc=host, or --shm-size=16g, to docker run",
    ),
    "compose": (
        "the service has neither `ipc: host` nor `shm_size`",
        "add `ipc: host`, or `shm_size: 16gb`, to the service",
    ),
    "Kubernetes": (
        "the container has no volume at /dev/shm",
        "mount an emptyDir with `medium: Memory` at /dev/shm",
    ),
}
"""What a launcher lacks that gives a container more shared memory, and the remedy."""


def _check_deep_gemm(case: Deployment) -> Iterable[Finding]:
    on = case.env.get(DEEP_GEMM) == "1"
    known, card = patch_number(case), case.card
    few = case.concurrency is None or case.concurrency <= FEW
    dense = case.model is not None and not is_sparse(case)
    if not on or known is None or card is None or dense or not few:
        return
    if known >= DEEP_GEMM_FIXED or "h200" not in card.name.lower():
        return
    at_once = f"{case.concurrency:.0f} requests at once" if case.concurrency is not None else "few requests"
    yield Finding(
        rule="U1",
        klass="gated",
        severity="warning",
        why=(
            f"{DEEP_GEMM}=1 on {card.name} with vLLM {case.version} (before 0.19.1) and {at_once}: "
            "reported 1.5 times the TTFT of DeepSeek-R1 with expert parallelism at 8 and fewer"
        ),
        env={DEEP_GEMM: "0"},
        expects="lower TTFT with few requests at once; or upgrade to 0.19.1 and leave the variable out",
        risks="with many requests at once DeepGEMM may be the faster one: measure both",
        source=f"rulebook U1; {TUNING}, mistake 8; vllm-project/vllm#28882",
        evidence={"concurrency": case.concurrency},
    )


def _check_nccl(case: Deployment) -> Iterable[Finding]:
    tuned = {name: case.env[name] for name in sorted(HAND_TUNED & case.env.keys())}
    tuned = {name: value for name, value in tuned.items() if HARMLESS.get(name) != value}
    card = case.card.name if case.card else ""
    if tuned.get(CUMEM) == "0" and "gb200" in card.lower():
        yield Finding(
            rule="U2",
            klass="gated",
            severity="warning",
            why=f"{CUMEM}=0 on {card}: NVLink between the nodes is off, so they use TCP or InfiniBand",
            env={CUMEM: None},
            expects="multi-node NVLink is used; NVIDIA names NCCL_NET_GDR_C2C=1 for GB200",
            risks="none known",
            source=f"rulebook U2; {TUNING}, mistake 10; vllm-project/vllm#16992",
        )
        tuned.pop(CUMEM)
    if case.card and case.card.link == "pcie":
        tuned.pop("NCCL_P2P_DISABLE", None)  # many such hosts hang without it: vllm-project/vllm#14449
    if not tuned or layout(case).gpus == 1:
        return
    slow = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if name in tuned]
    shown = ", ".join(f"{name}={value}" for name, value in tuned.items())
    yield Finding(
        rule="U2",
        klass="gated",
        severity="warning" if slow else "info",
        why=f"NCCL is tuned by hand ({shown}) for {layout(case).gpus} GPUs",
        env=dict.fromkeys(tuned),
        expects="NCCL chooses by the links that it detects" + (", peer to peer among them" if slow else ""),
        risks="if it prevents a hang on this machine, keep it",
        source=f"rulebook U2; {TUNING}, mistake 10: 'users should not need to tune NCCL' on such hosts",
        evidence=dict(tuned),
    )


def _check_shared_memory(case: Deployment) -> Iterable[Finding]:
    if case.little_shared_memory is None or layout(case).gpus == 1:
        return
    lacks, remedy = SHARED_MEMORY[case.little_shared_memory]
    yield Finding(
        rule="U2",
        klass="note",
        severity="warning",
        why=(
            f"{lacks} for {layout(case).gpus} GPUs: with a container's 64 MB of shared memory NCCL fails or "
            "vLLM hangs"
        ),
        expects=remedy,
        risks="none known",
        source="rulebook U2; vLLM docs deployment/docker.md; vllm-project/vllm#1125, vllm-project/vllm#1710",
    )


def _check_aiter(case: Deployment) -> Iterable[Finding]:
    """AMD's own kernels are off by default: `VLLM_ROCM_USE_AITER` is false in 0.32."""
    if not (case.card and case.card.name.startswith("MI3")) or AITER in case.env:
        return
    yield Finding(
        rule="U1",
        klass="note",
        severity="info",
        why=f"{AITER} is not set: on {case.card.name} vLLM runs without AMD's own kernels (AITER)",
        expects=f"measure with {AITER}=1: reported are 1.7 to 3.7 times the speed (Qwen3.5-122B-FP8, MI300X)",
        risks="some models and formats fail with it: vllm-project/vllm#34641, vllm-project/vllm#43605",
        source="rulebook U1; vLLM 0.32 envs.py; vllm-project/vllm#56945",
    )


def _check_compile_cache(case: Deployment) -> Iterable[Finding]:
    model = case.model
    named = f"{model.architecture} {model.name}" if model else text_of(case, "model")
    llama4 = "llama4" in named.lower().replace("-", "").replace("_", "")
    if not llama4 or case.env.get(COMPILE_CACHE) == "1":
        return
    keyed = is_at_least(case, KEYED_SINCE)
    why = f"{named.strip()} with vLLM's compile cache: a stale cache was reported for Llama 4"
    if keyed:
        why += f"; the cache key of vLLM {case.version} holds the model's config, so this no longer applies"
    yield Finding(
        rule="U3",
        klass="note" if keyed else "gated",
        severity="info",
        why=why,
        env={} if keyed else {COMPILE_CACHE: "1"},
        expects="no start with code compiled for other settings (such as attn_temperature_tuning)",
        risks=(
            "every start compiles again (5 to 15 minutes on large models); emptying "
            "$VLLM_CACHE_ROOT/torch_compile_cache once after such a change does the same"
        ),
        source=f"rulebook U3; {TUNING}, mistake 9; vLLM's Llama 4 post of 2025-04-05, config/model.py",
    )


def _check_exposure(case: Deployment) -> Iterable[Finding]:
    host, code = text_of(case, "host"), case.setting.get("trust_remote_code") is True
    guarded = bool(case.setting.get("api_key")) or bool(case.env.get("VLLM_API_KEY"))
    if code:
        why = (
            "--trust-remote-code is set: Python files of the model's repository run with the server's rights"
        )
        expects = "remove it if vLLM supports the model, or pin --revision to a reviewed one"
        yield _security_finding(why, expects)
    if _is_public(host) and not guarded:
        why = f"the server listens on {host} without --api-key: every client that reaches it may use it"
        expects = (
            "bind to 127.0.0.1 behind a proxy, or set --api-key; that guards /v1 only: "
            "/metrics, /health and developer endpoints stay open"
        )
        yield _security_finding(why, expects)


def _security_finding(why: str, expects: str) -> Finding:
    note: ChangeClass = "note"
    return Finding(
        rule="R1",
        klass=note,
        severity="info",
        why=why,
        expects=expects,
        risks="none",
        source="rulebook R1; serving guide, template 5; vLLM 0.32 entrypoints (what --api-key guards)",
    )


def _is_public(host: str) -> bool:
    """True if the address reaches beyond this machine. Names are not resolved."""
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


LINTS = (
    DeploymentCheck(
        rules=("U1",),
        check=_check_deep_gemm,
        needs=Needs(facts=("gpu", "version"), applies=has_any(DEEP_GEMM)),
    ),
    DeploymentCheck(rules=("U1",), check=_check_aiter, needs=Needs(facts=("gpu",))),
    DeploymentCheck(rules=("U2",), check=_check_nccl, needs=Needs(facts=("gpu",), applies=has_any(CUMEM))),
    DeploymentCheck(rules=("U2",), check=_check_shared_memory),
    DeploymentCheck(rules=("U3",), check=_check_compile_cache, needs=Needs(for_change=("version",))),
    DeploymentCheck(rules=("R1",), check=_check_exposure),
)
