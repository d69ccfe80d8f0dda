"""What keeps a container from being made again, and what a like one will not share with it.

Both are known from `inspect` alone, before anything is started. Each sentence says what to do.
"""

from actuators.docker.command import Json, ReadFiles, argv_of, env_of, place_in, setting_in
from actuators.docker.labels import EPOCH, LIKE, SERVER, SETTING, STATE_DIR, TARGET
from actuators.docker.mounts import anonymous_in
from actuators.docker.networks import (
    fixed_addresses,
    given_hostname,
    links_in,
    mode_of,
    names_in,
    own_network,
)
from vllm_facts.errors import FlagError

_STRIPPED = ("com.docker.compose.", "org.testcontainers.")
_OURS = frozenset({TARGET, SERVER, EPOCH, SETTING, LIKE, STATE_DIR})
_OWNERS = {
    "com.docker.swarm.service.name": "a Swarm service: Swarm itself starts and ends its containers",
    "io.kubernetes.pod.name": "a Kubernetes pod: the kubelet ends containers that it does not know",
    "com.hashicorp.nomad.alloc_id": "a Nomad allocation: Nomad itself starts and ends its containers",
}
_NOT_PLAIN_HTTP = {
    "uds": "it listens on a Unix socket",
    "ssl_certfile": "it speaks TLS itself",
    "ssl_keyfile": "it speaks TLS itself",
    "grpc": "it speaks gRPC",
    "headless": "it serves no API",
}
_LOOPBACK = ("127.", "localhost", "::1")
_UNREADABLE_LOGS = frozenset({"none"})


def obstacles(inspect: Json, image: Json | None, files: ReadFiles | None = None) -> tuple[str, ...]:
    """Why no like container can be made. `image`: what the engine says of its image; None: it is gone."""
    gone: tuple[str, ...] = ()
    if image is None:
        name = inspect["Config"].get("Image") or inspect["Image"]
        gone = (f"its image {name} ({inspect['Image'][:19]}) is not on this host any more: pull or build it",)
    return (*gone, *unlike(inspect, files))


def unlike(inspect: Json, files: ReadFiles | None = None) -> tuple[str, ...]:
    """Why no like container can be made, whatever became of the image."""
    return (*_of_command(inspect, files), *_of_network(inspect), *_of_owner(inspect))


def notes_of(inspect: Json, files: ReadFiles | None = None) -> tuple[str, ...]:
    """In what a like container will not be like this one, or will be in its way. Raises FlagError."""
    return (
        *_notes_of_network(inspect, files),
        *_notes_of_volumes(inspect),
        *_notes_of_life(inspect),
        *_notes_of_labels(inspect),
    )


def foreign_label(key: str) -> bool:
    """A label that says to whom a container belongs: a like one does not, and must not be taken for one."""
    return key in _OURS or key.startswith(_STRIPPED)


def _of_command(inspect: Json, files: ReadFiles | None) -> list[str]:
    try:
        argv_of(inspect)
        setting = setting_in(inspect, files)
        host, port = place_in(inspect, files)
    except FlagError as error:
        return [f"its command cannot be read: {error}"]
    found = {
        f"{why} (--{knob.replace('_', '-')}), and trimtab asks servers by plain HTTP on a port: "
        "take the flag out; TLS can end at the proxy"
        for knob, why in _NOT_PLAIN_HTTP.items()
        if setting.get(knob)
    }
    if own_network(inspect) and host.startswith(_LOOPBACK):
        found.add(f"it listens on {host} inside the container, where nobody can reach it: take --host out")
    if not port:
        found.add("--port 0 is no port to be reached on: name one")
    return sorted(found)


def _of_network(inspect: Json) -> list[str]:
    mode = mode_of(inspect)
    if mode.startswith("container:"):
        other = mode.removeprefix("container:")[:12]
        return [
            f"it lives in the network of the container {other}, where its port is taken: "  # noqa: ISC004
            "give it a network of its own, and join the other container to that"
        ]
    if mode == "none":
        return ["it has no network (--network none), so nobody can ask it: put it into one"]
    return []


def _of_owner(inspect: Json) -> list[str]:
    labels = inspect["Config"].get("Labels") or {}
    return [f"it belongs to {why}: change its flags there" for key, why in _OWNERS.items() if key in labels]


def _notes_of_network(inspect: Json, files: ReadFiles | None) -> list[str]:
    _, port = place_in(inspect, files)
    host = inspect["HostConfig"]
    found = [
        f"its fixed address {address} in {network} stays with it, the new one gets another: "
        "let clients ask the proxy, or a name"
        for network, address in fixed_addresses(inspect).items()
    ]
    found += [
        f"in {network} it answers to {', '.join(names)}, the new one only to its own name: "
        "let clients ask the proxy"
        for network, names in names_in(inspect).items()
        if names and not _is_ours(inspect)
    ]
    found += [
        f"--link {other}:{alias} holds as long as {other} runs: a user-defined network outlives that"
        for other, alias in links_in(inspect)
    ]
    if mode_of(inspect) == "host":
        found.append(f"it has port {port} of the host's network: the new one is told another by --port")
    elif f"{port}/tcp" not in (host.get("PortBindings") or {}) and not host.get("PublishAllPorts"):
        found.append(f"port {port} is not published: the new one publishes it, on the loopback address only")
    if own_network(inspect) and (given := given_hostname(inspect)):
        found.append(f"its host name {given} is a name in its networks: the new one gets another")
    if inspect["Config"].get("MacAddress"):
        found.append("its fixed MAC address stays with it: the new one gets another")
    for kind in ("PidMode", "IpcMode"):
        if str(host.get(kind) or "").startswith("container:"):
            found.append(
                f"{kind} is that of another container and ends with it: start both anew when it changes"
            )
    return found


def _notes_of_volumes(inspect: Json) -> list[str]:
    return [
        f"{path} is a volume without a name, which both will share: name it ({name[:12]} now)"
        for path, name in sorted(anonymous_in(inspect).items())
    ]


def _notes_of_life(inspect: Json) -> list[str]:
    host = inspect["HostConfig"]
    found: list[str] = []
    if _pins_its_cores(inspect):
        found.append(
            "vLLM for the CPU binds each server to the same cores, so two of them starve each other: set "
            "VLLM_CPU_OMP_THREADS_BIND=nobind in its environment, or give it a CPU set"
        )
    if host.get("AutoRemove"):
        found.append(
            "it was started with --rm: to stop it deletes it, and the way back with it, so it cannot give "
            "its place to another; start it without --rm"
        )
    if (host.get("LogConfig") or {}).get("Type") in _UNREADABLE_LOGS:
        found.append("it keeps no log (--log-driver none): a failed start can be told, but not why")
    return found


def _pins_its_cores(inspect: Json) -> bool:
    """Seen: a second server got 1 s of CPU in 4 minutes beside a busy one."""
    env = env_of(inspect)
    is_cpu = any(name.startswith("VLLM_CPU_") for name in env)
    pinned = env.get("VLLM_CPU_OMP_THREADS_BIND", "auto") == "auto"
    return is_cpu and pinned and not inspect["HostConfig"].get("CpusetCpus")


def _notes_of_labels(inspect: Json) -> list[str]:
    labels = inspect["Config"].get("Labels") or {}
    found: list[str] = []
    if project := labels.get("com.docker.compose.project"):
        service = labels.get("com.docker.compose.service", "?")
        found.append(
            f"compose owns it (project {project}, service {service}) and does not see the new one: after the "
            f"change, write the flags into the compose file; `up -d {service}` starts the old one again"
        )
    if any(key.startswith("traefik.") for key in labels):
        found.append(
            "its traefik labels are copied, so Traefik would send clients to the new one past the proxy: "
            "give those labels to the proxy instead"
        )
    return found


def _is_ours(inspect: Json) -> bool:
    return SERVER in (inspect["Config"].get("Labels") or {})
