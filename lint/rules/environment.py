"""Environment variables and network exposure: rules U1, U2, U3 and R1."""

import re
from collections.abc import Iterable, Mapping

from flettner.lint.memory_causes import shared_tier_gib
from flettner.primitives.address import parse_ip
from flettner.vllm_facts.references import DOCKER, DOCS, LLAMA_4, NCCL
from flettner.vllm_facts.serve_config import Finding, Launcher, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    is_at_least,
    is_older_than,
    is_sparse,
    layout,
    runs_on_cpus,
    text_of,
)
from flettner.vllm_facts.values import ChangeClass

DEEP_GEMM = "VLLM_MOE_USE_DEEP_GEMM"
TRITON_SINCE = (0, 32)  # the release that was read: a batch below 128 tokens runs on Triton
FEW = 16  # requests at once; vllm-project/vllm#28882 has it at 8 and fewer
AITER = "VLLM_ROCM_USE_AITER"
RDNA4 = re.compile(r"R9[67]00|RX 90\d0")  # gfx12: the Radeons for which AITER has kernels in Triton
RDNA4_SINCE = (0, 26)  # vLLM 0.30 has them; a nightly before 0.28 measured them (Tanguille/cluster#4879)
CORES = "VLLM_CPU_OMP_THREADS_BIND"
CUMEM = "NCCL_CUMEM_ENABLE"
PEERS = "NCCL_P2P_LEVEL"
PROTOCOL, SIMPLE = "NCCL_PROTO", "Simple"
PAIR = 2
GEFORCE = re.compile(r"RTX [345]0\d0( |$)")  # NVIDIA's driver has no peer access for them, a changed one has
NO_PEERS = frozenset({"", "0", "LOC", "NVL"})  # values that leave PCIe out
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
        PEERS,
        PROTOCOL,
        "NCCL_SHM_DISABLE",
    }
)
"""Variables that control NCCL's transport. Those that name interfaces (NCCL_IB_HCA …) depend on the site."""
HARMLESS = {"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0", "NCCL_NVLS_ENABLE": "1", CUMEM: "1"}
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


def _check_deep_gemm(config: ServeConfig) -> Iterable[Finding]:
    on, card = config.env.get(DEEP_GEMM) == "1", config.card
    few = config.concurrency is None or config.concurrency <= FEW
    dense = config.model is not None and not is_sparse(config)
    if not on or card is None or dense or not few or not is_older_than(config, TRITON_SINCE):
        return
    if "h200" not in card.name.lower():
        return
    at_once = (
        f"{config.concurrency:.0f} requests at once" if config.concurrency is not None else "few requests"
    )
    yield Finding(
        rule="U1",
        why=(
            f"{DEEP_GEMM}=1 on {card.name} with vLLM {config.version} and {at_once}: DeepGEMM's MoE kernels "
            "are reported as slow for so few tokens"
        ),
        expects=f"measure {DEEP_GEMM}=0: steps of decoding may be faster, prompts slower",
        risks="1.5 times the TTFT of DeepSeek-R1 with expert parallelism is reported without it",
        evidence={"concurrency": config.concurrency},
    )


def _find_tuned_nccl(config: ServeConfig) -> dict[str, str]:
    tuned = {name: config.env[name] for name in sorted(HAND_TUNED & config.env.keys())}
    return {name: value for name, value in tuned.items() if HARMLESS.get(name) != value}


def describe_tuned_nccl(config: ServeConfig) -> str:
    """`NCCL_BUFFSIZE=1024, …`: the variables that control NCCL's transport; "" for none."""
    return ", ".join(f"{name}={value}" for name, value in _find_tuned_nccl(config).items())


def _check_nccl(config: ServeConfig) -> Iterable[Finding]:
    tuned = _find_tuned_nccl(config)
    card = config.card.name if config.card else ""
    if tuned.get(CUMEM) == "0" and "gb200" in card.lower():
        yield Finding(
            rule="U2",
            klass="gated",
            severity="warning",
            why=f"{CUMEM}=0 on {card}: NVLink between the nodes is off, so they use TCP or InfiniBand",
            env={CUMEM: None},
            expects="multi-node NVLink is used",
            risks="NCCL takes 1 to 2 GiB more memory with CUDA graphs",
        )
    tuned.pop(CUMEM, None)  # elsewhere vLLM itself has set it so in many releases
    if RDNA4.search(card) and tuned.get(PROTOCOL) == SIMPLE:
        tuned.pop(PROTOCOL)  # the others hang there: host.toml
    if config.card is None or config.card.link != "nvlink":
        tuned.pop("NCCL_P2P_DISABLE", None)  # many hosts with PCIe hang without it: vllm-project/vllm#14449
    on_nvlink = config.card is not None and config.card.link == "nvlink" and tuned.get(PEERS) == "NVL"
    if on_nvlink or _has_changed_driver(config):
        tuned.pop(PEERS, None)  # without it NCCL leaves PCIe's peers of another root unused
    if not tuned or layout(config).gpus == 1:
        return
    slow = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if name in tuned]
    shown = ", ".join(f"{name}={value}" for name, value in tuned.items())
    yield Finding(
        rule="U2",
        klass="gated",
        severity="warning" if slow else "info",
        why=f"NCCL is tuned by hand ({shown}) for {layout(config).gpus} GPUs",
        env=dict.fromkeys(tuned),
        expects="NCCL chooses by the links that it detects" + (", peer to peer among them" if slow else ""),
        risks="if it prevents a hang on this machine, keep it",
        source=f"{NCCL} (some variables are for debugging only)",
        evidence=dict(tuned),
    )


def _has_changed_driver(config: ServeConfig) -> bool:
    """Whether NCCL is asked for peer access over PCIe between cards that have it by a changed driver only."""
    asked = config.env.get(PEERS, "").upper() not in NO_PEERS
    return asked and config.card is not None and GEFORCE.match(config.card.name) is not None


def _check_changed_driver(config: ServeConfig) -> Iterable[Finding]:
    """With more than two GPUs on PCIe vLLM leaves its own all-reduce out by itself."""
    off = config.setting.get("disable_custom_all_reduce") is True
    if off or layout(config).tp != PAIR or not _has_changed_driver(config) or config.card is None:
        return
    yield Finding(
        rule="U2",
        klass="gated",
        severity="warning",
        why=(
            f"{PEERS}={config.env[PEERS]} on two {config.card.name}: only a changed driver gives them peer "
            "access, and with it vLLM's own all-reduce is reported to return wrong data (answers of '!!!!') "
            "or to reset the host, where NCCL's is right"
        ),
        to={"disable_custom_all_reduce": True},
        expects="right answers; NCCL keeps its peer access",
        risks="where two cards have NVLink or slots of one root, vLLM's own all-reduce is faster",
        evidence={PEERS: config.env[PEERS]},
    )


def _check_shared_memory(config: ServeConfig) -> Iterable[Finding]:
    tier = _report_tier(config)
    if tier is not None:
        yield tier
        return
    if config.little_shared_memory is None or layout(config).gpus == 1:
        return
    lacks, remedy = SHARED_MEMORY[config.little_shared_memory]
    yield Finding(
        rule="U2",
        severity="warning",
        why=(
            f"{lacks} for {layout(config).gpus} GPUs: with a container's 64 MB of shared memory NCCL fails "
            "or vLLM hangs"
        ),
        expects=remedy,
        risks="none known",
    )


def _check_bound_cores(config: ServeConfig) -> Iterable[Finding]:
    """Lists of cores without a gap: the engine's own process has a core with a thread of a worker."""
    lists = [_read_cores(text) for text in config.env.get(CORES, "").split("|")]
    if len(lists) == 1 or not all(lists):
        return
    taken = sorted(core for cores in lists for core in cores)
    if taken != list(range(taken[-1] + 1)) or len({len(cores) for cores in lists}) > 1:
        return  # cores are left over, or the lists were chosen one by one
    spared = "|".join(f"{cores[0]}-{cores[-2]}" for cores in lists)
    yield Finding(
        rule="U1",
        klass="gated",
        severity="info",
        why=f"{CORES}={config.env[CORES]} gives every core to threads that compute: the engine's process, "
        "which never sleeps, shares one of them, and all processes wait for its thread in each exchange",
        env={CORES: spared},
        expects="faster steps, with a core of each process left free; nothing if the host has more cores",
        risks="one core of each process computes no more",
        evidence={"cores": len(taken)},
    )


def _check_single_core(config: ServeConfig) -> Iterable[Finding]:
    """A number alone, which is no count of threads but the place of one core."""
    given = config.env.get(CORES, "")
    if not re.fullmatch(r"\s*\d{1,4}\s*", given) or not runs_on_cpus(config):
        return
    yield Finding(
        rule="U1",
        klass="gated",
        severity="warning",
        why=f"{CORES}={given} binds all threads that compute to core {given.strip()}: it names cores, and "
        "no number of them",
        env={CORES: None},
        expects="as many threads as the server has cores; a range (0-3) or a list (0,2,4) chooses among them",
        risks="other work on these cores becomes slower",
    )


def _read_cores(text: str) -> list[int]:
    """The cores of `0-31`; [] for anything else, and for one or two cores."""
    match = re.fullmatch(r"\s*(\d{1,4})-(\d{1,4})\s*", text)
    cores = list(range(int(match[1]), int(match[2]) + 1)) if match else []
    return cores if len(cores) > PAIR else []


def _report_tier(config: ServeConfig) -> Finding | None:
    """A KV cache on the host that is larger than the shared memory in which it lies."""
    wanted, has = shared_tier_gib(config), _shared_memory_gib(config)
    serves = config.start is not None and config.start.serves
    if wanted is None or has is None or wanted <= has or serves:
        return None
    return Finding(
        rule="U2",
        severity="error",
        why=f"the KV cache on the host is a file of {wanted:g} GiB in /dev/shm, and the container has "
        f"{f'{has:.3g} GiB' if has >= 1 else f'{has * 1024:.0f} MiB'} there",
        expects="it starts with a larger /dev/shm (--shm-size or --ipc=host; compose: shm_size; Kubernetes: "
        "the sizeLimit of an emptyDir of `medium: Memory`), or with a smaller cache (--kv-offloading-size, "
        "cpu_bytes_to_use)",
        risks="none known",
        source="vllm-project/vllm#46949; vllm-project/vllm#50094",
        evidence={"shared_memory_gib": round(has, 2)},
    )


def _shared_memory_gib(config: ServeConfig) -> float | None:
    """What the command or the file gives the container; None where it is not bounded, or not known."""
    if config.little_shared_memory is not None:
        return 1 / 16
    return config.shared_memory_gib or (config.container.shared_memory_gib if config.container else None)


def _check_aiter(config: ServeConfig) -> Iterable[Finding]:
    """AMD's own kernels are off by default: `VLLM_ROCM_USE_AITER` is false."""
    if not (config.card and config.card.name.startswith("MI3")) or AITER in config.env:
        return
    yield Finding(
        rule="U1",
        why=f"{AITER} is not set: on {config.card.name} vLLM runs without AMD's own kernels (AITER)",
        expects=f"measure with {AITER}=1: 1.7 to 3.7 times the speed is reported (Qwen3.5-122B-FP8, MI300X)",
        risks="some models and formats fail with it: vllm-project/vllm#34641, vllm-project/vllm#43605",
    )


def _check_aiter_on_radeon(config: ServeConfig) -> Iterable[Finding]:
    """A person who switches some of AITER's kernels off has found those that run."""
    card = config.card.name if config.card else ""
    chosen = any(name.startswith(f"{AITER}_") for name in config.env)
    if not card.startswith("Radeon") or config.env.get(AITER, "0").lower() not in {"1", "true"} or chosen:
        return
    if RDNA4.search(card) and not is_older_than(config, RDNA4_SINCE):
        return
    yield Finding(
        rule="U1",
        klass="gated",
        severity="warning",
        why=f"{AITER}=1 on {card}: AITER's kernels are made for the Instinct series; releases that ask it "
        "here end at the start or with the first request, and others ignore the variable",
        env={AITER: None},
        expects="vLLM's own kernels (Triton), which run here",
        risks="none known",
    )


def _check_compile_cache(config: ServeConfig) -> Iterable[Finding]:
    model = config.model
    named = f"{model.architecture} {model.name}" if model else text_of(config, "model")
    llama4 = "llama4" in named.lower().replace("-", "").replace("_", "")
    if not llama4 or config.env.get(COMPILE_CACHE) == "1":
        return
    keyed = is_at_least(config, KEYED_SINCE)
    why = f"{named.strip()} with vLLM's compile cache: vLLM's post on Llama 4 turns it off in all commands"
    if keyed:
        why += f"; the cache key of vLLM {config.version} holds the model's config, so this no longer applies"
    yield Finding(
        rule="U3",
        klass="note" if keyed else "gated",
        why=why,
        env={} if keyed else {COMPILE_CACHE: "1"},
        expects="no start with code compiled for other settings (such as attn_temperature_tuning)",
        risks=(
            "every start compiles again, which takes minutes on large models; emptying "
            "$VLLM_CACHE_ROOT/torch_compile_cache once after such a change does the same"
        ),
    )


def _check_exposure(config: ServeConfig) -> Iterable[Finding]:
    host, code = text_of(config, "host"), config.setting.get("trust_remote_code") is True
    guarded = bool(config.setting.get("api_key")) or bool(config.env.get("VLLM_API_KEY"))
    if code:
        why = (
            "--trust-remote-code is set: Python files of the model's repository run with the server's rights"
        )
        expects = "remove it if vLLM supports the model, or pin --revision to a reviewed one"
        yield _security_finding(why, expects)
    if _is_public(host) and not guarded:
        why = f"the server listens on {host} without --api-key: every client that reaches it may use it"
        expects = (
            "bind to 127.0.0.1 behind a proxy, or set --api-key; that guards /v1, /v2, /inference and "
            "/cohere only: /metrics, /health and developer endpoints stay open"
        )
        yield _security_finding(why, expects)


def _security_finding(why: str, expects: str) -> Finding:
    note: ChangeClass = "note"
    return Finding(
        rule="R1",
        klass=note,
        why=why,
        expects=expects,
        risks="none",
    )


def _is_public(host: str) -> bool:
    """True if the address reaches beyond this machine. Names are not resolved."""
    ip = parse_ip(host.strip("[]"))
    return ip is not None and not ip.is_loopback


LINTS = (
    DeploymentCheck(
        rules=("U1",),
        find=_check_deep_gemm,
        reports=f"{DEEP_GEMM}=1 on an H200 with few requests at once, before 0.32",
        source=(
            "vllm-project/vllm#28882; vllm-project/vllm#29346; "
            "vllm/model_executor/layers/fused_moe/experts/deep_gemm_moe.py: _valid_deep_gemm_shape"
        ),
        evidence_for=(
            "DeepSeek-V3 with TP 8 is best without it on Hopper and Blackwell, and 0.12 turns it off there "
            "(vllm-project/vllm#29346); it wastes up to 94 % of a decoding step (vllm-project/vllm#39331)"
        ),
        evidence_against="without it DeepSeek-R1 took 1.5 times the TTFT on 8 H200 (vllm-project/vllm#28882)",
        needs=Needs(facts=("gpu", "version"), applies=has_any(DEEP_GEMM)),
    ),
    DeploymentCheck(
        rules=("U1",),
        find=_check_aiter,
        reports=f"an AMD GPU without {AITER}",
        source="vllm/envs.py: VLLM_ROCM_USE_AITER; vllm-project/vllm#56945",
        evidence_for="1.7 to 3.7 times the speed (Qwen3.5-122B-FP8, MI300X, vllm-project/vllm#56945)",
        evidence_against=(
            "some models and formats fail with it (vllm-project/vllm#34641, vllm-project/vllm#43605)"
        ),
        needs=Needs(facts=("gpu",)),
    ),
    DeploymentCheck(
        rules=("U1",),
        find=_check_aiter_on_radeon,
        reports=f"{AITER}=1 on a Radeon",
        source="vllm/_aiter_ops.py: is_aiter_found_and_supported; ROCm/aiter#3294; ROCm/aiter#5229",
        evidence_against=(
            "later releases serve RDNA4 with AITER's Triton kernels (vllm/_aiter_ops.py: "
            "is_aiter_found_and_supported_on_rdna4; Tanguille/cluster#4879)"
        ),
        needs=Needs(facts=("gpu",), applies=has_any(AITER)),
    ),
    DeploymentCheck(
        rules=("U2",),
        find=_check_nccl,
        reports=f"NCCL variables that were set by hand, and {CUMEM}=0 on a GB200",
        source="vllm-project/vllm#16992",
        evidence_for="on a GB200 the all-reduce between nodes is very slow with it (vllm-project/vllm#16992)",
        evidence_against="vLLM sets it to 0 on other hosts to save 1 to 2 GiB (vllm-project/vllm#19105)",
        needs=Needs(facts=("gpu",), applies=has_any(CUMEM)),
    ),
    DeploymentCheck(
        rules=("U2",),
        find=_check_changed_driver,
        reports="two GeForce cards with peer access by a changed driver",
        source="noonghunna/club-3090#922; noonghunna/club-3090#1332",
        evidence_for="answers of '!!!!' end with it (noonghunna/club-3090#922)",
        evidence_against="it is right on slots of one root complex (noonghunna/club-3090#922)",
        needs=Needs(facts=("gpu",), applies=has_any(PEERS)),
    ),
    DeploymentCheck(
        rules=("U1",),
        find=_check_bound_cores,
        reports="a server on CPUs whose threads leave no core to its engine",
        source="vllm-project/vllm#25818",
        evidence_for="it ended slow exchanges between two NUMA nodes (vllm-project/vllm#25818)",
        needs=Needs(applies=has_any(CORES)),
    ),
    DeploymentCheck(
        rules=("U1",),
        find=_check_single_core,
        reports="a server on CPUs all of whose threads have one core",
        source="https://docs.vllm.ai/en/latest/getting_started/installation/cpu/; "
        "vllm/utils/ompmultiprocessing.py: _parse_omp_threads_bind_env",
        evidence_for="vLLM binds the threads to the listed cores; no public measurement of one core",
        needs=Needs(applies=has_any(CORES)),
    ),
    DeploymentCheck(
        rules=("U2",),
        find=_check_shared_memory,
        reports="a container with less shared memory than several GPUs need, or the KV cache on the host",
        source=f"{DOCKER}; vllm-project/vllm#1125; vllm-project/vllm#1710",
    ),
    DeploymentCheck(
        rules=("U3",),
        find=_check_compile_cache,
        reports="Llama 4 with a compile cache whose key may lack the model's config",
        source=f"{LLAMA_4}; vllm/config/model.py: compute_hash",
        needs=Needs(for_change=("version",)),
    ),
    DeploymentCheck(
        rules=("R1",),
        find=_check_exposure,
        reports="code of the model's repository that runs, or a public address without a key",
        source=(f"{DOCS}/usage/security/; vllm/entrypoints/serve/middleware/authenticate.py: GUARDED_PREFIX"),
    ),
)
