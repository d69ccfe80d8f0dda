"""CPUs and time that a container needs and its file does not grant: rules C3 and U4."""

import re
from collections.abc import Iterable
from dataclasses import replace

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, Layout, layout, text_of
from flettner.vllm_facts.sizing.kv_cache import weights_gib

LEAST_S = 60.0  # imports, compilation, CUDA graphs and the first steps, where little is to be read
HUB_GIB_PER_S, DISK_GIB_PER_S = 0.2, 1.0  # a first start downloads; later ones, and paths, read a disk
THREADS = "OMP_NUM_THREADS"
SLOW_ANSWER_S, DEAF_S = 5.0, 60.0  # below both, a server at its limit misses its probes
_ENDS = re.compile(r"INFO: +Shutting down|Waiting for connections to close")
_STRUCTURED = ("structured_outputs_config", "guided_decoding")
ARCHITECTURE = f"{DOCS}/design/arch_overview/"
POD_PROBES = f"{DOCS}/deployment/k8s/"


def _check_cpus(config: ServeConfig) -> Iterable[Finding]:
    granted, shape = config.granted, layout(config)
    if granted is None or (granted.cpus is None and granted.cpus_kept is None):
        return
    hosts = config.hosts or 1
    servers = positive_int(config.setting, "api_server_count") or shape.dp
    processes = (servers + shape.dp + shape.gpus) / hosts
    bound = granted.cpus is not None and granted.cpus < processes
    cpus = granted.cpus if bound else granted.cpus_kept
    if cpus is None or cpus >= processes:
        return
    took = "may use" if bound else "asks for"
    yield Finding(
        rule="C3",
        severity="warning" if bound else "info",
        why=(
            f"the container {took} {cpus:g} CPUs for {processes:.0f} processes that are busy at once: API "
            "server, engine and a worker for each GPU; the GPU waits where one of them waits for a CPU"
            + ("" if bound else ", and others on the host may take the rest")
        ),
        expects=f"{2 * processes:.0f} CPUs (threads of a core count as half): shorter ITL and TTFT",
        risks="fewer such containers fit on a host",
        evidence={"cpus": cpus, "processes": round(processes)},
    )


def _check_threads(config: ServeConfig) -> Iterable[Finding]:
    """One GPU for an engine: with more, vLLM itself lets each worker have one thread."""
    granted, shape = config.granted, layout(config)
    if granted is None or granted.cpus is None or shape.tp * shape.pp > 1 or THREADS in config.env:
        return
    structured = any(knob.startswith(_STRUCTURED) for knob in config.setting)
    if not structured and not config.setting.get("tool_call_parser"):
        return  # nothing here is known to compute on the CPU with each token
    threads = max(1, int(granted.cpus) // 2)
    yield Finding(
        rule="C3",
        klass="gated" if structured else "note",
        severity="warning" if structured else "info",
        env={THREADS: str(threads)} if structured else {},
        why=(
            f"the container may use {granted.cpus:g} CPUs, but PyTorch starts a thread for each core of the "
            f"host, as {THREADS} is not set: together they use up the quota, and then all stand still"
        ),
        expects=f"{THREADS} of at most {granted.cpus:g}: answers by a schema, sampling penalties and "
        "image preprocessing, which compute on the CPU, keep their pace; reported: 1.4 instead of 7.3 s",
        risks="too few threads read weights and preprocess images slowly: measure once",
        evidence={"cpus": granted.cpus},
    )


def _check_watching_probe(config: ServeConfig) -> Iterable[Finding]:
    """The API server answers a probe between other work: late, when many requests run."""
    granted = config.granted
    if granted is None or granted.answer_s is None or granted.deaf_s is None:
        return
    if granted.answer_s >= SLOW_ANSWER_S or granted.deaf_s >= DEAF_S:
        return
    ended = granted.restarts and any(map(_ENDS.search, config.log))
    name = "liveness" if granted.restarts else "readiness"
    does = "restarts the container" if granted.restarts else "takes the server out of its service"
    yield Finding(
        rule="U4",
        severity="warning" if ended else "info",
        why=(
            f"the {name} probe {does} after {granted.deaf_s:.0f} s without an answer within "
            f"{granted.answer_s:g} s: a server with many requests answers later, and is no worse for it"
            + ("; the log shows that it was told to end" if ended else "")
        ),
        expects="timeoutSeconds 15 and failureThreshold 10 for the liveness and the readiness probe",
        risks="a server that hangs is found later",
        evidence={"answer_s": granted.answer_s, "deaf_s": granted.deaf_s},
    )


def _check_probe(config: ServeConfig) -> Iterable[Finding]:
    granted = config.granted
    if granted is None or granted.start_s is None:
        return
    size = _weights(config) or 0.0
    local = text_of(config, "model").startswith(("/", "."))
    speed = DISK_GIB_PER_S if local else HUB_GIB_PER_S
    needed = LEAST_S + size / speed / (config.hosts or 1)
    if granted.start_s >= needed:
        return
    probe = "startup" if granted.startup_probe else "liveness"
    reads = "" if local else " downloads or"
    work = f", which{reads} reads {size:.0f} GiB of weights," if size else ""
    yield Finding(
        rule="U4",
        severity="info" if granted.startup_probe else "warning",
        why=(
            f"the {probe} probe restarts the container {granted.start_s:.0f} s after its start if it does "
            f"not answer yet; a start{work} may take {needed:.0f} s, and then it never serves"
        ),
        expects="a startupProbe with periodSeconds 10 and failureThreshold 60 or more: the other probes wait "
        "for it, and a fast start is not delayed",
        risks="a start that hangs is found later",
        evidence={"start_s": granted.start_s},
    )


def _weights(config: ServeConfig) -> float | None:
    """In all, in GiB; by its name where the model is not known."""
    known = weights_gib(config, Layout())
    if known is not None or config.estimate is None:
        return known
    return weights_gib(replace(config, model=config.estimate), Layout())


LINTS = (
    DeploymentCheck(
        rules=("C3",),
        find=_check_cpus,
        reports="a container with fewer CPUs than busy processes",
        source=f"{ARCHITECTURE} (processes)",
        needs=Needs(applies=lambda config: config.granted is not None),
    ),
    DeploymentCheck(
        rules=("U4",),
        find=_check_probe,
        reports="a probe that ends the start before the weights are read",
        source=f"{POD_PROBES} (troubleshooting); vllm-project/aibrix#772; kserve/kserve#5062",
        evidence_for=(
            "an 8B model starts with 360 s where it was restarted for ever (vllm-project/aibrix#772); 120 s "
            "are too short for large models (kserve/kserve#5062)"
        ),
        needs=Needs(applies=lambda config: config.granted is not None),
    ),
    DeploymentCheck(
        rules=("C3",),
        find=_check_threads,
        reports="a quota of CPUs without a bound for PyTorch's threads, one for each core of the host",
        source="vllm-project/vllm#49013; vllm-project/vllm#9113; vllm-project/vllm#49460",
        evidence_for=(
            "guided answers take 1.4 instead of 7.3 s, 664 instead of 120 tokens/s (one B300, "
            "vllm-project/vllm#49013)"
        ),
        needs=Needs(applies=lambda config: config.granted is not None),
    ),
    DeploymentCheck(
        rules=("U4",),
        find=_check_watching_probe,
        reports="a probe that a server with many requests misses",
        source="llm-d/llm-d-benchmark#1734; gonka-ai/gonka#1421; scaleapi/llm-engine#255",
        evidence_for=(
            "8 needless restarts a day became none (4 B300, Kimi-K2.6, gonka-ai/gonka#1421, with a probe of "
            "another kind)"
        ),
        needs=Needs(applies=lambda config: config.granted is not None),
    ),
)
