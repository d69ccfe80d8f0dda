"""Obstacles to a like container, and its differences from the original.

Both are known from `inspect` alone, before any container starts. Each message names the fix.
"""

from flettner.actuators.docker.labels import EPOCH, LIKE, SERVER, SETTING, STATE_DIR, TARGET
from flettner.actuators.docker.spec import BUILT_IN_NETWORKS, ContainerSpec, Json
from flettner.actuators.vllm.serve_command import http_obstacles
from flettner.primitives.address import is_loopback

_STRIPPED = ("com.docker.compose.", "org.testcontainers.")
_OURS = frozenset({TARGET, SERVER, EPOCH, SETTING, LIKE, STATE_DIR})
_OWNERS = {
    "com.docker.swarm.service.name": "a Swarm service: Swarm itself starts and ends its containers",
    "io.kubernetes.pod.name": "a Kubernetes pod: the kubelet ends containers that it does not know",
    "com.hashicorp.nomad.alloc_id": "a Nomad allocation: Nomad itself starts and ends its containers",
}
_UNREADABLE_LOGS = frozenset({"none"})


def find_obstacles(spec: ContainerSpec, image: Json | None) -> tuple[str, ...]:
    """Return why no like container can be made. `image`: its inspect document; None: the image is gone."""
    gone: tuple[str, ...] = ()
    if image is None:
        name = spec.image_tag or spec.image
        gone = (f"its image {name} ({spec.image[:19]}) is not on this host any more: pull or build it",)
    return (*gone, *obstacles_of_container(spec))


def obstacles_of_container(spec: ContainerSpec) -> tuple[str, ...]:
    """Return why no like container can be made, even with its image."""
    return (*_of_command(spec), *_of_network(spec), *_of_owner(spec))


def notes_of(spec: ContainerSpec) -> tuple[str, ...]:
    """Return in what a like container differs from this one, and what they share."""
    return (
        *_notes_of_clients(spec),
        *_notes_of_network(spec),
        *_notes_of_volumes(spec),
        *_notes_of_life(spec),
        *_notes_of_labels(spec),
    )


def foreign_label(key: str) -> bool:
    """Whether a label assigns the container to an owner: a like container does not belong to that owner."""
    return key in _OURS or key.startswith(_STRIPPED)


def _of_command(spec: ContainerSpec) -> list[str]:
    serve = spec.serve
    if serve.error:
        return [f"its command cannot be read: {serve.error}"]
    found = set(http_obstacles(serve.setting))
    if spec.has_own_ports and is_loopback(serve.host):
        found.add(
            f"it listens on {serve.host} inside the container, where no client reaches it: remove --host"
        )
    if not serve.port:
        found.add("--port 0 is no port to be reached on: name one")
    return sorted(found)


def _of_network(spec: ContainerSpec) -> list[str]:
    mode = spec.network_mode
    if mode.startswith("container:"):
        other = mode.removeprefix("container:")[:12]
        return [
            f"it is in the network of the container {other}, where its port is in use: "  # noqa: ISC004
            "give it a network of its own, and join the other container to that"
        ]
    if mode == "none":
        return ["it has no network (--network none), so no client reaches it: connect it to one"]
    return []


def _of_owner(spec: ContainerSpec) -> list[str]:
    return [
        f"it belongs to {why}: change its flags there" for key, why in _OWNERS.items() if key in spec.labels
    ]


def _notes_of_clients(spec: ContainerSpec) -> list[str]:
    """What clients lose that do not use the proxy. Those of a container that flettner made all do."""
    if SERVER in spec.labels:
        return []
    ports = [spec.serve.port] if spec.network_mode == "host" else spec.published
    places = [f"port {port} of this host" for port in ports]
    places += [f"{', '.join(names)} in the network {network}" for network, names in _names(spec).items()]
    if not places:
        return []
    lost = f"nothing answers any more at {' and '.join(places)}"
    why = "since the new server gets another port and name; let clients ask the proxy before"
    return [f"a promotion stops {spec.name}: {lost}, {why}"]


def _notes_of_network(spec: ContainerSpec) -> list[str]:
    port = spec.serve.port
    fixed = {name: one.fixed_address for name, one in spec.networks.items() if one.fixed_address}
    found = [
        f"it keeps its fixed address {address} in {network}, the new one gets another: "
        "let clients ask the proxy"
        for network, address in fixed.items()
    ]
    found += [
        f"--link {other}:{alias} holds as long as {other} runs: a user-defined network outlives that"
        for other, alias in spec.links
    ]
    if spec.network_mode == "host":
        found.append(f"it uses port {port} of the host's network: the new one gets another by --port")
    elif f"{port}/tcp" not in spec.bound_ports and not spec.publish_all:
        found.append(f"port {port} is not published: the new one publishes it, on the loopback address only")
    if spec.has_own_ports and spec.hostname:
        found.append(f"its host name {spec.hostname} is a name in its networks: the new one gets another")
    if spec.mac_address:
        found.append("it keeps its fixed MAC address: the new one gets another")
    for kind, mode in (("PidMode", spec.pid_mode), ("IpcMode", spec.ipc_mode)):
        if mode.startswith("container:"):
            found.append(
                f"{kind} is that of another container and ends with it: start both again when it changes"
            )
    return found


def _names(spec: ContainerSpec) -> dict[str, list[str]]:
    """Return the names that other containers know it by, by network: its own, and its aliases."""
    return {
        name: list(dict.fromkeys(one for one in (spec.name, *endpoint.aliases) if one != spec.id[:12]))
        for name, endpoint in spec.networks.items()
        if name not in BUILT_IN_NETWORKS
    }


def _notes_of_volumes(spec: ContainerSpec) -> list[str]:
    return [
        f"{path} is a volume without a name, which both will share: name it ({name[:12]} now)"
        for path, name in sorted(spec.anonymous_volumes.items())
    ]


def _notes_of_life(spec: ContainerSpec) -> list[str]:
    found: list[str] = []
    if _pins_its_cores(spec):
        found.append(
            "vLLM for the CPU binds each server to the same cores, so two of them starve each other: set "
            "VLLM_CPU_OMP_THREADS_BIND=nobind in its environment, or give it a CPU set"
        )
    if spec.auto_remove:
        found.append(
            "it was started with --rm, so a stop removes it, and no rollback is possible: "
            "start it without --rm"
        )
    if spec.log_driver in _UNREADABLE_LOGS:
        found.append("it keeps no log (--log-driver none): a failed start is reported without its cause")
    return found


def _pins_its_cores(spec: ContainerSpec) -> bool:
    """Measured: a second server got 1 s of CPU in 4 minutes while a busy one ran."""
    env = spec.env
    is_cpu = any(name.startswith("VLLM_CPU_") for name in env)
    pinned = env.get("VLLM_CPU_OMP_THREADS_BIND", "auto") == "auto"
    return is_cpu and pinned and not spec.cpus


def _notes_of_labels(spec: ContainerSpec) -> list[str]:
    labels = spec.labels
    found: list[str] = []
    if project := labels.get("com.docker.compose.project"):
        service = labels.get("com.docker.compose.service", "?")
        found.append(
            f"compose owns it (project {project}, service {service}) and does not know the new one: after "
            f"the change, write the flags into the compose file; `up -d {service}` starts the old one again"
        )
    if any(key.startswith("traefik.") for key in labels):
        found.append(
            "its traefik labels are copied, so Traefik would bypass the proxy for the new one: "
            "give those labels to the proxy instead"
        )
    return found
