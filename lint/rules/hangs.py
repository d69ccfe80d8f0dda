"""Several GPUs that hang in their first exchange, which no line of the log says: rules F9 and F8."""

import re
from collections.abc import Iterable

from flettner.lint.recogniser import LOG
from flettner.lint.rules.environment import describe_tuned_nccl
from flettner.vllm_facts.log_counts import read_counts
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, layout
from flettner.vllm_facts.sizing.parallel_layouts import is_pcie_only, is_single_host
from flettner.vllm_facts.start_facts import LONGEST_LINE

PEERS_OFF = "NCCL_P2P_DISABLE"
STUCK = 2  # counts in a row from the first on: a step of a single exchange takes less than a second
_TAIL = 60  # lines: NCCL_DEBUG=INFO writes some ten for each GPU
_EXCHANGE = re.compile(
    r"NCCL INFO|vLLM is using nccl==|Found nccl from|world_size=\d+ rank=\d|rank \d+ in world size \d"
    r"|GPU P2P access cache|NCCL version \d|backend=nccl"
)
_BETWEEN = re.compile(
    r"Waiting for \d+ (?:local|core)|^\s*$|FutureWarning|UserWarning|UserInfo|warnings\.warn|torch\.load"
    r"|resource_tracker|Worker ready; awaiting|Custom allreduce is disabled|custom_all_reduce|\bDEBUG\b"
)
"""Lines that other processes write meanwhile, or that follow at once."""

_OTHER_END = re.compile(
    r"\b(?:ERROR|CRITICAL|Traceback)\b|\w(?:Error|Exception):|No available shared memory broadcast"
    r"|RPC call to \w+ timed out|NCCL WARN|[Kk]illed"
)


def _check_first_exchange(config: ServeConfig) -> Iterable[Finding]:
    """A log that ends where NCCL links the GPUs, without an error."""
    lines = [line[:LONGEST_LINE] for line in config.log]
    last = next((line for line in reversed(lines[-_TAIL:]) if not _BETWEEN.search(line)), "")
    start = config.start
    began = start is not None and (start.loaded or start.read_weights)
    if began or layout(config).gpus == 1 or not _EXCHANGE.search(last):
        return
    if any(map(_OTHER_END.search, lines)):
        return
    yield Finding(
        rule="F9",
        klass="gated" if _peers_off(config) else "note",
        severity="error",
        why="the log ends where NCCL links the GPUs, without an error: if nothing follows for a minute, "
        "their first exchange hangs",
        env=_peers_off(config),
        expects=_advise(config),
        risks="without peer access the GPUs exchange through the host's memory, which is slower",
        evidence={"line": last.strip()[:200]},
    )


def _check_stuck(config: ServeConfig) -> Iterable[Finding]:
    """Requests that run on several GPUs without a token since the start, while none waits."""
    counts = read_counts(config.log)
    stuck = [each for each in counts if each.running and not each.works]
    if layout(config).gpus == 1 or len(stuck) < STUCK or any(each.works or each.waiting for each in counts):
        return
    yield Finding(
        rule="F8",
        klass="gated" if _peers_off(config) else "note",
        severity="warning",
        why=f"{layout(config).gpus} GPUs have computed no token since the start, though requests run "
        f"({stuck[-1].running}): their exchange hangs, unless the first prompt is very long",
        env=_peers_off(config),
        expects=_advise(config),
        risks="without peer access the GPUs exchange through the host's memory, which is slower",
        evidence={"counts": len(stuck)},
    )


def _peers_off(config: ServeConfig) -> dict[str, str | None]:
    """Between GPUs of one host that PCIe links: there peer access most often fails."""
    fits = is_single_host(config) and is_pcie_only(config)
    return {PEERS_OFF: "1"} if fits and config.env.get(PEERS_OFF) != "1" else {}


def _advise(config: ServeConfig) -> str:
    if not is_single_host(config):
        return (
            "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name the interface between the hosts (not docker0 or "
            "lo), VLLM_HOST_IP each host's own address; firewalls between them are open; NCCL_DEBUG=INFO "
            "shows which interface was taken" + _name_tuned(config)
        )
    access = (
        "turn the IOMMU and PCIe's access control (ACS) off (BIOS; iommu=off, pci=noacs for the kernel), in "
        "a virtual machine on its host: with them peer access between GPUs hangs"
    )
    parts = [access]
    if _peers_off(config):
        parts.insert(0, f"it goes on with {PEERS_OFF}=1 (and --disable-custom-all-reduce)")
    elif not is_pcie_only(config):
        parts.insert(0, f"{PEERS_OFF}=1 tells whether it is the peer access between the GPUs")
    if config.env.get(PEERS_OFF) == "1":
        parts.insert(0, "without peer access NCCL takes /dev/shm: a container needs --ipc=host for it")
    parts.append("NCCL_DEBUG=INFO and py-spy dump show where it waits")
    return "; ".join(parts) + _name_tuned(config)


def _name_tuned(config: ServeConfig) -> str:
    tuned = describe_tuned_nccl(config)
    return f"; set by hand here: {tuned}" if tuned else ""


_SOURCE = (
    "vllm-project/vllm#9920; NVIDIA/nccl#2079; "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
)
LINTS = (
    DeploymentCheck(
        rules=("F9",),
        find=_check_first_exchange,
        reports="a log that ends where NCCL links the GPUs",
        source=f"vllm-project/vllm#33041; {_SOURCE}",
        needs=LOG,
    ),
    DeploymentCheck(
        rules=("F8",),
        find=_check_stuck,
        reports="several GPUs that have computed no token since the start",
        source=_SOURCE,
        needs=LOG,
    ),
)
