"""A container whose file does not fit the server in it: health checks, volumes, memory (V1, U5, F6)."""

import re
from collections.abc import Iterable, Mapping

from flettner.lint.recogniser import LOG
from flettner.lint.rules.offloading import host_memory
from flettner.vllm_facts.hub_cache import cache_folder, hub_caches
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.serve_config import Container, Finding, HealthCheck, Needs, ServeConfig
from flettner.vllm_facts.shell_command.docker_run import is_vllm_image
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    invalid_flags_finding,
    text_of,
)
from flettner.vllm_facts.start_facts import find_last

_MOVING = re.compile(r"latest|nightly|main\b|dev\b")
_EVERY, _LOOPBACK = frozenset({"", "0.0.0.0", "::", "[::]"}), ("127.", "::1", "[::1]", "localhost")  # noqa: S104
_ANSWERED = re.compile(r'"GET /(?:health|v1/models|ping)\b[^"]{0,40}" 200')
_VARIABLE = "VLLM_PORT"
_OWN_GB = 20.0  # of the host, for each process beside its cache: vllm-project/aibrix#1154
_GB = 1e9 / 2**30
_DOWNLOADED = r"Time spent downloading weights for \S{1,300}: (\d{1,6})(?:\.\d{1,9})? seconds"
_COMPILED = r"torch\.compile (?:took|takes) (\d{1,5})(?:\.\d{1,6})? s in total"
_LONG_S = 60
_NO_GPU = re.compile(r"Insufficient (?:nvidia|amd)\.com/gpu")
_ENV_VARS = f"{DOCS}/configuration/env_vars/"


def _check_port_variable(config: ServeConfig) -> Iterable[Finding]:
    if config.container is None or not config.container.port_variable or _VARIABLE in config.env:
        return
    yield invalid_flags_finding(
        f"the file has a Service of the name `vllm`: for it Kubernetes sets {_VARIABLE}=tcp://… in the "
        "pods of its namespace, which vLLM reads as the number of a port",
        {},
        expects="it starts with another name of the Service, or with `enableServiceLinks: false` in the "
        "pod's spec",
    )


def _check_health(config: ServeConfig) -> Iterable[Finding]:
    """One finding for all checks: they ask the same server."""
    if config.container is None or any(map(_ANSWERED.search, config.log)):
        return
    reasons = [(check, why) for check in config.container.checks if (why := _why_deaf(check, config))]
    if not reasons:
        return
    names, why = ", ".join(check.name for check, _ in reasons), reasons[0][1]
    yield Finding(
        rule="U5",
        severity="warning",
        why=f"{names}: {why}, so the server is never called healthy"
        + ("" if config.container.launcher == "compose" else ", and is restarted or gets no requests"),
        expects=f"the check asks {text_of(config, 'host') or 'the server'} on port {config.port}; or the "
        "server has --host 0.0.0.0 and the port that is asked, if no other program of the container "
        "listens there",
        risks="none known",
        evidence={"port": config.port, "host": text_of(config, "host") or None},
    )


def _listens_elsewhere(config: ServeConfig) -> bool:
    """Whether a flag chooses other ports than --port, or may do so in a file that is not read."""
    odd = ("uds", "headless", "config", "data_parallel_multi_port_external_lb")
    return any(config.setting.get(knob) for knob in odd)


def _check_asked_ports(config: ServeConfig) -> Iterable[Finding]:
    container, port = config.container, config.port
    if container is None or port is None or not container.asked_ports or port in container.asked_ports:
        return
    if _listens_elsewhere(config) or any(map(_ANSWERED.search, config.log)):
        return
    asked = container.asked_ports[0]
    yield Finding(
        rule="U5",
        severity="warning",
        why=f"{container.asked_by} leads requests to port {asked} of the container, where the server listens "
        f"on {port}: none of them reaches it",
        expects=f"--port {asked}, or {port} in its place there",
        risks="none known",
        evidence={"port": port},
    )


def _why_deaf(check: HealthCheck, config: ServeConfig) -> str:
    """Why a check reaches nothing; "" where it may reach the server, or where that is not known."""
    host, port = text_of(config, "host").lower(), config.port
    if _listens_elsewhere(config) or "$" in host or port is None:
        return ""
    if check.port != port:
        return f"it asks port {check.port}, where the server listens on {port}"
    local = host.startswith(_LOOPBACK)
    if check.inside and host not in _EVERY and not local and host[:1].isdecimal():
        return f"it asks the container's loopback address, where the server listens on {host} alone"
    if not check.inside and local:
        return f"it asks the pod's address, where the server listens on {host} alone"
    return ""


def _check_overlays(config: ServeConfig) -> Iterable[Finding]:
    """A mount over files of vLLM, before or after a start that tells nothing of it."""
    container = config.container
    if container is None or not container.overlays or (config.start is not None and config.start.serves):
        return
    tag = container.image.rpartition(":")[2] if ":" in container.image.rpartition("/")[2] else "latest"
    moves = _MOVING.search(tag) is not None
    yield Finding(
        rule="U5",
        severity="warning" if moves else "info",
        why=(
            f"a mount puts a file of the host over vLLM's own {container.overlays[0]}, which fits the "
            "release that it was taken from"
            + (f"; the image's tag {tag} moves on to others" if moves else "")
        ),
        expects="without the mount the image runs as it was built; with it, the image of just that release "
        "(a fixed tag), and the mount goes when a release has the change",
        risks="what the mounted file mended is open again without it",
        evidence={"image": container.image or None},
    )


def _check_gpu_fault(config: ServeConfig) -> Iterable[Finding]:
    if config.container is None or not config.container.gpu_fault:
        return
    yield Finding(
        rule="U5",
        severity="warning",
        why=config.container.gpu_fault,
        expects="a whole number, 1 for a server on one GPU; servers that are to share a GPU need a device "
        "plugin with time slices, MIG or MPS, each asking for 1, and gpu_memory_utilization below 1 in sum",
        risks="a replica without a free GPU waits",
    )


def _check_surge(config: ServeConfig) -> Iterable[Finding]:
    container = config.container
    if container is None or not (container.surges and container.asks_gpus and container.crowded):
        return
    if any(map(_NO_GPU.search, config.log)):
        return  # host.toml says so
    yield Finding(
        rule="U5",
        why="an update of this Deployment starts the new pod before it ends the old one, which keeps its "
        f"GPUs until the new one is ready, and {container.crowded}: where no other GPU is free, both wait "
        "for ever",
        expects="updates end with `strategy: {type: Recreate}`, or with maxSurge 0 and maxUnavailable 1 "
        "under rollingUpdate; with spare GPUs the present way has no pause",
        risks="no server answers from the old pod's end until the new one has started",
    )


def _check_memory(config: ServeConfig) -> Iterable[Finding]:
    limit = config.container.memory_gib if config.container else None
    taken = host_memory(config)
    if limit is None or taken is None or taken.all_gib <= limit:
        return
    each = limit / _GB / taken.processes - _OWN_GB
    smaller = f", or with {each:.0f} GB for each process" if each >= 1 else ""
    needed = taken.all_gib / _GB + _OWN_GB * taken.processes
    serves = config.start is not None and config.start.serves  # so far
    yield Finding(
        rule="U5",
        severity="warning" if serves else "error",
        why=f"{taken.what} takes {taken.all_gib / _GB:.0f} GB of the host's memory, and the container may "
        f"use {limit / _GB:.0f} GB: it is ended (OOMKilled)",
        expects=f"it runs with a memory limit of {needed:.0f} GB ({_OWN_GB:.0f} GB for each process "
        f"beside its cache){smaller}",
        risks="none known",
        evidence={"memory_gib": round(limit, 1)},
    )


def _check_hub_cache(config: ServeConfig) -> Iterable[Finding]:
    """Weights of a hub that every new container downloads."""
    container, name = config.container, text_of(config, "model")
    if container is None or container.mounts is None or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return
    place = _hub_cache(config, container)
    if place is None or _keeps(container, place):
        return
    took = find_last(_DOWNLOADED, config.log)
    if took is None and not is_vllm_image(container.image):
        return  # an image of one's own may hold the weights
    slow = took is not None and int(took[1]) >= _LONG_S
    yield Finding(
        rule="U5",
        severity="warning" if slow else "info",
        why=f"no volume holds the downloaded weights{f' ({place})' if place else ''}: every new container "
        "downloads them again" + (f", which took {took[1]} s" if took else ""),
        expects=f"a volume at {place or 'the cache of the hub (HF_HOME)'}, or HF_HOME in one of its volumes",
        risks="none known",
    )


def _check_compiled(config: ServeConfig) -> Iterable[Finding]:
    container, took = config.container, find_last(_COMPILED, config.log)
    if container is None or container.mounts is None or took is None or int(took[1]) < _LONG_S:
        return
    caches = cache_folder(_env(config, container))
    place = config.env.get("VLLM_CACHE_ROOT") or (f"{caches}/vllm" if caches else None)
    if place is None or _keeps(container, place):
        return
    yield Finding(
        rule="F6",
        severity="warning",
        why=f"{took[1]} s of this start were compilation, and no volume holds its results ({place}): "
        "every new container compiles again",
        expects=f"a volume at {place}, or VLLM_CACHE_ROOT in one of its volumes: the next start with the "
        "same flags loads them; another for ~/.triton/cache spares more",
        risks="after an update of vLLM the old results are left over",
        evidence={"compilation_s": int(took[1])},
    )


def _env(config: ServeConfig, container: Container) -> Mapping[str, str]:
    """The variables of the container, with the home of vLLM's images."""
    return {**({"HOME": "/root"} if is_vllm_image(container.image) else {}), **config.env}


def _hub_cache(config: ServeConfig, container: Container) -> str | None:
    """The folder of the weights; None where it is not known, "" if there is no volume to hold it."""
    shares = [mount for mount in container.mounts or () if mount.lasting]
    caches = hub_caches(_env(config, container), text_of(config, "download_dir"))
    return next(caches, None if shares else "")


def _keeps(container: Container, place: str) -> bool:
    """Whether a lasting volume holds the folder, or a part of it."""
    folder = place.rstrip("/") + "/"
    return any(
        mount.lasting and (folder.startswith(path) or path.startswith(folder))
        for mount in container.mounts or ()
        if (path := mount.path.rstrip("/") + "/")
    )


_DESCRIBED = Needs(applies=lambda config: config.container is not None)
LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_port_variable,
        reports="a Service of the name `vllm`, whose variables vLLM reads as its own",
        source=f"{_ENV_VARS}; opea-project/GenAIInfra#612; defilantech/LLMKube#358",
    ),
    DeploymentCheck(
        rules=("U5",),
        find=_check_health,
        reports="a health check or a probe of a port or an address where the server does not listen",
        source=f"MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#185; {DOCS}/deployment/k8s/",
        needs=_DESCRIBED,
    ),
    DeploymentCheck(
        rules=("U5",),
        find=_check_asked_ports,
        reports="a Service, or published ports, that lead to a port where nobody listens",
        source=f"https://docs.docker.com/engine/network/port-publishing/; {DOCS}/deployment/k8s/",
        needs=_DESCRIBED,
    ),
    DeploymentCheck(
        rules=("U5",),
        find=_check_overlays,
        reports="a mount that hides files of vLLM in the image, where a start says nothing of it",
        source="https://docs.docker.com/engine/storage/bind-mounts/ (bind-mounting over existing data)",
        needs=_DESCRIBED,
    ),
    DeploymentCheck(
        rules=("U5",),
        find=_check_gpu_fault,
        reports="a part of a GPU, which Kubernetes does not give",
        source="vllm-project/production-stack#1047; "
        "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
        needs=_DESCRIBED,
    ),
    DeploymentCheck(
        rules=("U5",),
        find=_check_surge,
        reports="a Deployment whose updates need a second set of GPUs, where little speaks for one",
        source="defilantech/LLMKube#192; bayesimpact/bayes-platform#776; vllm-project/production-stack#973",
        needs=_DESCRIBED,
    ),
    DeploymentCheck(
        rules=("U5",),
        find=_check_memory,
        reports="a memory limit below what the server keeps in the host's memory",
        source="vllm-project/aibrix#1154; LMCache/LMCache#949; vllm/config/cache.py: kv_offloading_size",
        needs=_DESCRIBED,
    ),
    DeploymentCheck(
        rules=("U5",),
        find=_check_hub_cache,
        reports="weights from a hub without a volume for them",
        source=f"opea-project/GenAIExamples#1642; {DOCS}/deployment/docker/",
        needs=_DESCRIBED,
    ),
    DeploymentCheck(
        rules=("F6",),
        find=_check_compiled,
        reports="a long compilation whose results no volume keeps",
        source=f"mitchross/talos-argocd-proxmox#1848; gpustack/gpustack#5175; {DOCS}/design/torch_compile/",
        needs=LOG,
    ),
)
