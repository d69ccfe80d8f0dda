"""What compose files and Kubernetes manifests say of a server's container besides its command."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from flettner.vllm_facts.launch_files.shell_variables import replace_defaults
from flettner.vllm_facts.launch_files.yaml_nodes import SCALAR, Node, entries, get, items, text_at
from flettner.vllm_facts.serve_config import Container, HealthCheck, Mount
from flettner.vllm_facts.shell_command.docker_run import find_overlays, read_gib, read_published_port

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_ASKED = re.compile(r"\bhttp://(?P<host>[\w.-]+|\[[\da-fA-F:]+\])(?::(?P<port>\d{1,5}))?(?=[/\s'\")]|$)")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HTTP = 80
_OWN_PORT = "vllm"  # its Service's variables are VLLM_PORT, which vLLM reads as its own, VLLM_SERVICE_HOST …
DEVICES = ("nvidia.com/gpu", "amd.com/gpu")
_HOST_LABEL = "kubernetes.io/hostname"
_WHOLE_HOST = 8  # GPUs


def describe_pod(document: Node, container: Node, services: Sequence[Node] = ()) -> Container:
    """Of a resource whose controller adds nothing to its pods. `services`: those of its namespace."""
    template = get(document, "spec", "template", "spec")
    pod = template if template is not None else get(document, "spec")
    labels = get(document, *(("spec", "template") if template is not None else ()), "metadata", "labels")
    linked = text_at(pod, "enableServiceLinks").lower() != "false"
    mounts = _mounts_of_pod(pod, container)
    return Container(
        launcher="Kubernetes",
        image=text_at(container, "image"),
        mounts=mounts,
        overlays=find_overlays(mount.path for mount in mounts),
        checks=tuple(_probes(pod, container)),
        memory_gib=read_gib(text_at(container, "resources", "limits", "memory")),
        shared_memory_gib=_shared_memory(pod, container),
        asks_gpus=any(text_at(container, "resources", "limits", device) for device in DEVICES),
        gpu_fault=_explain_part(container),
        runtime=text_at(pod, "runtimeClassName"),
        surges=_surges(document),
        crowded=_why_crowded(document, pod, container),
        port_variable=linked and any(text_at(each, "metadata", "name") == _OWN_PORT for each in services),
        **_asked_by_services(pod, container, [each for each in services if _selects(each, labels)]),
    )


def describe_service(service: Node) -> Container:
    """Of a service of compose."""
    limit = text_at(service, "mem_limit") or text_at(service, "deploy", "resources", "limits", "memory")
    mounts = _mounts_of_service(service)
    return Container(
        launcher="compose",
        image=text_at(service, "image"),
        mounts=mounts,
        overlays=find_overlays(mount.path for mount in mounts or ()),
        checks=tuple(_health_check(service)),
        memory_gib=read_gib(limit, binary=True),
        shared_memory_gib=None
        if text_at(service, "ipc")
        else read_gib(replace_defaults(text_at(service, "shm_size")), binary=True),
        **_published(service),
    )


class _Asked(TypedDict, total=False):
    """Fields of a Container."""

    asked_ports: tuple[int, ...]
    asked_by: str


def _selects(service: Node, labels: Node | None) -> bool:
    """Whether a Service leads to the pods with these labels."""
    selector = [(name, str(value.value)) for name, _, value in entries(get(service, "spec", "selector"))]
    return bool(selector) and all(text_at(labels, name) == value for name, value in selector)


def _asked_by_services(pod: Node | None, container: Node, services: Sequence[Node]) -> _Asked:
    """The ports of the pod to which its Services lead, unless another container listens there."""
    ports, others = _named_ports(container), _ports_of_others(pod, container)
    asked = []
    for service in services:
        for entry in items(get(service, "spec", "ports")):
            target = text_at(entry, "targetPort") or text_at(entry, "port")
            target = ports.get(target, target)
            if not target.isdecimal() or target in others:
                return {}
            asked.append(int(target))
    names = ", ".join(text_at(service, "metadata", "name") for service in services)
    return {"asked_ports": tuple(dict.fromkeys(asked)), "asked_by": f"the Service {names}"} if asked else {}


def _published(service: Node) -> _Asked:
    """The ports of the container that compose publishes."""
    if get(service, "network_mode") is not None or get(service, "extends") is not None:
        return {}
    asked = []
    for entry in items(get(service, "ports")):
        text = str(entry.value) if entry.id == SCALAR else text_at(entry, "target")
        port = read_published_port(replace_defaults(text))
        if port is None:
            return {}
        asked.append(port)
    return {"asked_ports": tuple(dict.fromkeys(asked)), "asked_by": "`ports`"} if asked else {}


def _why_crowded(document: Node, pod: Node | None, container: Node) -> str:
    """A sign that no other host can take the new pod of an update; "" for none."""
    selected = [text_at(pod, "nodeName"), text_at(pod, "nodeSelector", _HOST_LABEL)]
    keys = texts_of(get(pod, "affinity", "nodeAffinity"), "key")
    ports = any(text_at(port, "hostPort") for port in items(get(container, "ports")))
    gpus = max(
        (
            int(text)
            for device in DEVICES
            if (text := text_at(container, "resources", "limits", device)).isdecimal()
        ),
        default=0,
    )
    strategy = get(document, "spec", "strategy", "rollingUpdate")
    claims = any(get(volume, "persistentVolumeClaim") is not None for volume in items(get(pod, "volumes")))
    if any(selected) or _HOST_LABEL in keys:
        return "the pods are bound to one host"
    if ports or text_at(pod, "hostNetwork").lower() == "true":
        return "the pod takes a port of its host"
    if gpus >= _WHOLE_HOST:
        return f"a pod takes {gpus} GPUs"
    if text_at(strategy, "maxUnavailable") in {"0", "0%"}:
        return "maxUnavailable is 0"
    if claims and text_at(document, "spec", "replicas") in {"", "1"}:
        return "its claim of a volume binds it to one host, unless it is ReadWriteMany"
    return ""


def texts_of(node: Node | None, name: str) -> list[str]:
    """The texts of all entries of a name below a node."""
    texts = []
    for key, _, value in entries(node):
        texts += [str(value.value)] if key == name and value.id == SCALAR else texts_of(value, name)
    for item in items(node):
        texts += texts_of(item, name)
    return texts


def _named_ports(container: Node) -> Mapping[str, str]:
    return {text_at(port, "name"): text_at(port, "containerPort") for port in items(get(container, "ports"))}


def _ports_of_others(pod: Node | None, container: Node) -> set[str]:
    return {
        text_at(port, "containerPort")
        for other in (*items(get(pod, "containers")), *items(get(pod, "initContainers")))
        if other.start_mark.index != container.start_mark.index
        for port in items(get(other, "ports"))
    }


def _mounts_of_pod(pod: Node | None, container: Node) -> tuple[Mount, ...]:
    passing = {
        text_at(volume, "name")
        for volume in items(get(pod, "volumes"))
        if any(name == "emptyDir" for name, _, _ in entries(volume))
    }
    return tuple(
        Mount(path=path, lasting=text_at(mount, "name") not in passing)
        for mount in items(get(container, "volumeMounts"))
        if (path := text_at(mount, "mountPath"))
    )


def _mounts_of_service(service: Node) -> tuple[Mount, ...] | None:
    if get(service, "extends") is not None or get(service, "volumes_from") is not None:
        return None
    mounts = []
    for volume in items(get(service, "volumes")):
        written = volume.id == SCALAR
        text = replace_defaults(str(volume.value)) if written else replace_defaults(text_at(volume, "target"))
        parts = text.split(":")
        path = parts[1] if written and len(parts) > 1 else parts[0]
        if "$" in text:
            return None
        mounts.append(Mount(path=path, lasting=text_at(volume, "type") != "tmpfs"))
    return tuple(mounts)


def _probes(pod: Node | None, container: Node) -> Iterator[HealthCheck]:
    """The probes that ask the server's own container over HTTP."""
    named, others = _named_ports(container), _ports_of_others(pod, container)
    for name in _PROBES:
        asked = get(container, name, "httpGet")
        port = text_at(asked, "port")
        port = named.get(port, port)
        if asked is not None and not text_at(asked, "host") and port.isdecimal() and port not in others:
            yield HealthCheck(name=name, port=int(port))


def _health_check(service: Node) -> Iterator[HealthCheck]:
    """The check that asks the container itself, by the URL in its command."""
    test = get(service, "healthcheck", "test")
    words = [str(test.value)] if test is not None and test.id == SCALAR else []
    words += [str(word.value) for word in items(test) if word.id == SCALAR]
    found = list(_ASKED.finditer(replace_defaults(" ".join(words))))
    if len(found) == 1 and found[0]["host"].lower() in _LOOPBACK:
        yield HealthCheck(name="healthcheck", port=int(found[0]["port"] or _HTTP), inside=True)


def _explain_part(container: Node) -> str:
    """Why a part of a GPU is not given; "" for whole ones."""
    given = (
        text_at(container, "resources", kind, device) for kind in ("limits", "requests") for device in DEVICES
    )
    part = next(filter(is_part, given), "")
    return f"Kubernetes counts whole GPUs and refuses the pod, which asks for {part}" if part else ""


def is_part(count: str) -> bool:
    """Whether a number of GPUs is none of whole ones."""
    return re.fullmatch(r"\d{0,9}\.\d{0,9}", count) is not None and float(f"0{count}") % 1 > 0


def _surges(document: Node) -> bool:
    """Whether a Deployment's update begins with a new pod, as it does by default."""
    if text_at(document, "kind") != "Deployment":
        return False
    kind = text_at(document, "spec", "strategy", "type") or "RollingUpdate"
    most = text_at(document, "spec", "strategy", "rollingUpdate", "maxSurge") or "25%"
    return kind == "RollingUpdate" and most not in {"0", "0%"}


def _shared_memory(pod: Node | None, container: Node) -> float | None:
    """The bound of the volume at /dev/shm."""
    places = {
        text_at(mount, "name"): text_at(mount, "mountPath").rstrip("/")
        for mount in items(get(container, "volumeMounts"))
    }
    bounds = (
        read_gib(text_at(volume, "emptyDir", "sizeLimit"))
        for volume in items(get(pod, "volumes"))
        if places.get(text_at(volume, "name")) == "/dev/shm"  # noqa: S108 - a path inside the container
    )
    return next(bounds, None)
