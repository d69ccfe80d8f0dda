"""Make the body of a container that is like another one, except for flags, name, ports and networks.

The create call takes what inspect shows, except for a dozen fields that belong to one container only. Those
are left out or replaced here, and each one that an operator may notice is noted. What is in the way of a like
container is known before any starts; each message names the fix.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import BUILT_IN_NETWORKS, NEVER, Container, Endpoint, Json
from flettner.actuators.docker.registry import EPOCH, LIKE, SETTING
from flettner.actuators.vllm.control import with_own_control
from flettner.actuators.vllm.scheduler_class import SchedulerFolders
from flettner.actuators.vllm.serve_command import http_obstacles
from flettner.agent.domain.errors import ActError
from flettner.clients.docker.labels import SERVER, SITE, TARGET
from flettner.primitives.address import is_loopback
from flettner.vllm_facts.values import Value

_NOT_CONFIG = frozenset(
    {"ArgsEscaped", "AttachStderr", "AttachStdin", "AttachStdout", "Hostname", "MacAddress", "OnBuild"}
)
_NOT_HOST = frozenset({"ConsoleSize", "ContainerIDFile", "Links"})
_LONGEST_HOSTNAME = 63
_STRIPPED = ("com.docker.compose.", "org.testcontainers.")
_OURS = frozenset({TARGET, SERVER, EPOCH, SETTING, LIKE, SITE})
_OWNERS = {
    "com.docker.swarm.service.name": "a Swarm service: Swarm itself starts and ends its containers",
    "io.kubernetes.pod.name": "a Kubernetes pod: the kubelet ends containers that it does not know",
    "com.hashicorp.nomad.alloc_id": "a Nomad allocation: Nomad itself starts and ends its containers",
}
_UNREADABLE_LOGS = frozenset({"none"})
IN_CONTAINER = SchedulerFolders(Path("/opt/flettner/scheduler"), Path("/opt/flettner/control"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """The request that makes a container."""

    image: str  # the pinned id: the tag may point to another image by now
    body: Json = field(repr=False)  # for POST /containers/create; holds secrets
    name: str
    argv: tuple[str, ...] = field(repr=False)  # program and flags of its server
    networks: tuple[tuple[str, Json], ...] = ()  # to be connected between create and start


def clone(
    container: Container,
    *,
    name: str,
    labels: Mapping[str, str],
    setting: Mapping[str, Value],
    host_port_ip: str = "127.0.0.1",
    port: int | None = None,
    scheduler: SchedulerFolders | None = None,
) -> CreateRequest:
    """Return the container `name`: like `container`, with this full setting (empty: with its own).

    It never restarts, is reached on a port of `host_port_ip` that the Engine chooses anew at each start, and
    answers to its own name only. In the network of the host no port is published: the server listens on
    `port`. `scheduler`: folders of this host, to be mounted. Raises FlagError if the flags cannot be changed,
    ActError for any other obstacle.
    """
    changed = container.serve.with_setting(setting, port=port)
    if problems := obstacles_of_container(container):
        raise ActError("; ".join(problems))
    body = {
        **_config(container, name, labels),
        "Image": container.image,
        "Env": _env(changed.env, name, scheduler),
        "Entrypoint": changed.entrypoint,
        "Cmd": changed.command,
        "HostConfig": _host_config(container, scheduler),
    }
    if container.has_own_ports:
        _publish(body, _published(container, port or container.serve.port), host_port_ip)
    elif port is None:
        raise ActError("a container in the network of the host needs a port of its own to listen on")
    if network := _network_at_create(container, name):
        body["NetworkingConfig"] = {"EndpointsConfig": network}
    return CreateRequest(
        image=container.image,
        body=body,
        name=name,
        argv=changed.argv,
        networks=_networks_before_start(container, name),
    )


def mount_options(container: Container) -> list[Json]:
    """Return the `Mounts` of a like container; `--mount type=volume,target=/data` by the real name."""
    names = container.anonymous_volumes
    return [
        {**mount, "Source": names[mount["Target"]]} if mount["Target"] in names else dict(mount)
        for mount in container.document["HostConfig"].get("Mounts") or ()
    ]


def _config(container: Container, name: str, labels: Mapping[str, str]) -> Json:
    copied = {
        key: deepcopy(value)
        for key, value in container.document["Config"].items()
        if key not in _NOT_CONFIG and value is not None
    }
    own = {key: value for key, value in container.labels.items() if not foreign_label(key)}
    return {**copied, **_hostname(container, name), "Labels": {**own, **labels}}


def _env(lines: list[str], name: str, scheduler: SchedulerFolders | None) -> list[str]:
    """Return the environment of the new container; lines without a value stay as they are."""
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    own = IN_CONTAINER.add_to(given, name) if scheduler else with_own_control(given, name)
    copied = [
        f"{line.partition('=')[0]}={own[line.partition('=')[0]]}" if "=" in line else line for line in lines
    ]
    return [*copied, *(f"{key}={value}" for key, value in own.items() if key not in given)]


def _hostname(container: Container, name: str) -> Json:
    """Return a host name of green's own if blue has a chosen one: that is a name in the network, too."""
    if not container.hostname:
        return {}
    if container.network_mode == "host":
        return {"Hostname": container.hostname}
    return {"Hostname": re.sub(r"[^A-Za-z0-9-]", "-", name)[:_LONGEST_HOSTNAME].strip("-")}


def _scheduler_mounts(scheduler: SchedulerFolders) -> list[Json]:
    """Mount the folders: unlike a bind, a mount of a missing folder is refused with a clear error."""
    return [
        {"Type": "bind", "Source": str(there), "Target": str(here), "ReadOnly": here == IN_CONTAINER.package}
        for there, here in (
            (scheduler.package, IN_CONTAINER.package),
            (scheduler.sockets, IN_CONTAINER.sockets),
        )
    ]


def _host_config(container: Container, scheduler: SchedulerFolders | None) -> Json:
    copied = {
        key: deepcopy(value)
        for key, value in container.document["HostConfig"].items()
        if key not in _NOT_HOST and value is not None
    }
    return {
        **copied,
        "Binds": _binds(container),
        "Mounts": [*mount_options(container), *(_scheduler_mounts(scheduler) if scheduler else ())],
        "Links": [f"{other}:{alias}" for other, alias in container.links],
        "AutoRemove": False,  # the Engine would remove it, log included, before its end was examined
        "RestartPolicy": dict(NEVER),
        "PortBindings": {},
        "PublishAllPorts": False,
    }


def _binds(container: Container) -> list[str]:
    """Return anonymous volumes by name: without it the Engine would make new, empty volumes."""
    by_mount = {mount["Target"] for mount in mount_options(container)}
    read_only = {mount.destination for mount in container.mounts if not mount.writable}
    volumes = [
        f"{name}:{path}" + (":ro" if path in read_only else "")
        for path, name in sorted(container.anonymous_volumes.items())
        if path not in by_mount
    ]
    return [*container.binds, *volumes]


def _published(container: Container, listens: int) -> list[str]:
    """Return the ports to publish: those of the original, and the port that the server listens on."""
    exposed = container.exposed_ports if container.publish_all else ()
    return sorted({*container.bound_ports, *exposed, f"{listens}/tcp"})


def _publish(body: Json, ports: Sequence[str], ip: str) -> None:
    body["ExposedPorts"] = {**(body.get("ExposedPorts") or {}), **{port: {} for port in ports}}
    body["HostConfig"]["PortBindings"] = {port: [{"HostIp": ip, "HostPort": ""}] for port in ports}


def _network_at_create(container: Container, alias: str) -> dict[str, Json]:
    """Return the network of the create body: older Engines take one only, built-in ones are not named.

    Raises ActError for a network that the container was started in and has left.
    """
    mode = container.network_mode
    if not container.has_own_ports or mode in BUILT_IN_NETWORKS:
        return {}
    if mode not in container.networks:
        raise ActError(
            f"the container was started in the network {mode} and is not in it now: "
            f"`docker network connect {mode} {container.name}`, or recreate it without"
        )
    return {mode: _endpoint(container.networks[mode], alias)}


def _networks_before_start(container: Container, alias: str) -> tuple[tuple[str, Json], ...]:
    others = sorted(container.networks.keys() - BUILT_IN_NETWORKS - {container.network_mode})
    return tuple((name, _endpoint(container.networks[name], alias)) for name in others)


def _endpoint(endpoint: Endpoint, alias: str) -> Json:
    """Leave out the addresses and names of blue: Docker's DNS would send its traffic to green at once."""
    return {**endpoint.options, "Aliases": [alias]}


# The image.


async def find_image_name(client: DockerClient, container: Container) -> str:
    """Return the name:tag of the image; once the tag has moved, its name@digest, or its id without one."""
    image = await client.image(container.image)
    if image is None:
        return container.image
    for name in _image_names(container.image_tag, image):
        named = await client.image(name)
        if named is not None and named["Id"] == image["Id"]:
            return name
    return container.image


def _image_names(tag: str, image: Json) -> Iterator[str]:
    """Yield the original's own name first, then the digests of the same repository."""
    repository = tag.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    if tag:
        yield tag
    for digest in image.get("RepoDigests") or ():
        if str(digest).partition("@")[0] == repository:
            yield str(digest)


# Obstacles and notes.


def find_obstacles(container: Container, image: Json | None) -> tuple[str, ...]:
    """Return why no like container can be made. `image`: its inspect document; None: the image is gone."""
    gone: tuple[str, ...] = ()
    if image is None:
        name = container.image_tag or container.image
        gone = (f"its image {name} ({container.image[:19]}) is not on this host any more: pull or build it",)
    return (*gone, *obstacles_of_container(container))


def obstacles_of_container(container: Container) -> tuple[str, ...]:
    """Return why no like container can be made, even with its image."""
    return (*_of_command(container), *_of_network(container), *_of_owner(container))


def notes_of(container: Container) -> tuple[str, ...]:
    """Return the differences of a like container from this one, and what both share."""
    return (
        *_notes_of_clients(container),
        *_notes_of_network(container),
        *_notes_of_volumes(container),
        *_notes_of_life(container),
        *_notes_of_labels(container),
    )


def foreign_label(key: str) -> bool:
    """Whether a label assigns the container to an owner: a like container does not belong to that owner."""
    return key in _OURS or key.startswith(_STRIPPED)


def _of_command(container: Container) -> list[str]:
    serve = container.serve
    if serve.error:
        return [f"its command cannot be read: {serve.error}"]
    obstacles = set(http_obstacles(serve.setting))
    if container.has_own_ports and is_loopback(serve.host):
        obstacles.add(
            f"it listens on {serve.host} inside the container, where no client reaches it: remove --host"
        )
    if not serve.port:
        obstacles.add("--port 0 is no port to be reached on: name one")
    return sorted(obstacles)


def _of_network(container: Container) -> list[str]:
    mode = container.network_mode
    if mode.startswith("container:"):
        other = mode.removeprefix("container:")[:12]
        return [
            f"it is in the network of the container {other}, where its port is in use: "  # noqa: ISC004
            "give it a network of its own, and join the other container to that"
        ]
    if mode == "none":
        return ["it has no network (--network none), so no client reaches it: connect it to one"]
    return []


def _of_owner(container: Container) -> list[str]:
    return [
        f"it belongs to {why}: change its flags there"
        for key, why in _OWNERS.items()
        if key in container.labels
    ]


def _notes_of_clients(container: Container) -> list[str]:
    """Note the addresses that go dead for clients that bypass the proxy; none do for a container of ours."""
    if SERVER in container.labels:
        return []
    ports = [container.serve.port] if container.network_mode == "host" else container.published
    places = [f"port {port} of this host" for port in ports]
    places += [f"{', '.join(names)} in the network {network}" for network, names in _names(container).items()]
    if not places:
        return []
    lost = f"nothing answers any more at {' and '.join(places)}"
    why = "since the new server gets another port and name; let clients ask the proxy before"
    return [f"a promotion stops {container.name}: {lost}, {why}"]


def _notes_of_network(container: Container) -> list[str]:
    port = container.serve.port
    fixed = {name: endpoint.fixed_address for name, endpoint in container.networks.items()}
    notes = [
        f"it keeps its fixed address {address} in {network}, the new one gets another: "
        "let clients ask the proxy"
        for network, address in fixed.items()
        if address
    ]
    notes += [
        f"--link {other}:{alias} holds as long as {other} runs: a user-defined network outlives that"
        for other, alias in container.links
    ]
    if container.network_mode == "host":
        notes.append(f"it uses port {port} of the host's network: the new one gets another by --port")
    elif f"{port}/tcp" not in container.bound_ports and not container.publish_all:
        notes.append(f"port {port} is not published: the new one publishes it, on the loopback address only")
    if container.has_own_ports and container.hostname:
        notes.append(
            f"its host name {container.hostname} is a name in its networks: the new one gets another"
        )
    if container.mac_address:
        notes.append("it keeps its fixed MAC address: the new one gets another")
    for kind, mode in (("PidMode", container.pid_mode), ("IpcMode", container.ipc_mode)):
        if mode.startswith("container:"):
            notes.append(
                f"{kind} is that of another container and ends with it: start both again when it changes"
            )
    return notes


def _names(container: Container) -> dict[str, list[str]]:
    """Return the names that other containers know it by, by network: its own, and its aliases."""
    return {
        name: list(
            dict.fromkeys(name for name in (container.name, *endpoint.aliases) if name != container.id[:12])
        )
        for name, endpoint in container.networks.items()
        if name not in BUILT_IN_NETWORKS
    }


def _notes_of_volumes(container: Container) -> list[str]:
    return [
        f"{path} is a volume without a name, which both will share: name it ({name[:12]} now)"
        for path, name in sorted(container.anonymous_volumes.items())
    ]


def _notes_of_life(container: Container) -> list[str]:
    notes: list[str] = []
    if _pins_its_cores(container):
        notes.append(
            "vLLM for the CPU binds each server to the same cores, so two of them starve each other: set "
            "VLLM_CPU_OMP_THREADS_BIND=nobind in its environment, or give it a CPU set"
        )
    if container.auto_remove:
        notes.append(
            "it was started with --rm, so a stop removes it, and no rollback is possible: "
            "start it without --rm"
        )
    if container.log_driver in _UNREADABLE_LOGS:
        notes.append("it keeps no log (--log-driver none): a failed start is reported without its cause")
    return notes


def _pins_its_cores(container: Container) -> bool:
    """Measured: a second server got 1 s of CPU in 4 minutes while a busy one ran."""
    env = container.env
    is_cpu = any(name.startswith("VLLM_CPU_") for name in env)
    pinned = env.get("VLLM_CPU_OMP_THREADS_BIND", "auto") == "auto"
    return is_cpu and pinned and not container.cpus


def _notes_of_labels(container: Container) -> list[str]:
    labels = container.labels
    notes: list[str] = []
    if project := labels.get("com.docker.compose.project"):
        service = labels.get("com.docker.compose.service", "?")
        notes.append(
            f"compose owns it (project {project}, service {service}) and does not know the new one: after "
            f"the change, write the flags into the compose file; `up -d {service}` starts the old one again"
        )
    if any(key.startswith("traefik.") for key in labels):
        notes.append(
            "its traefik labels are copied, so Traefik would bypass the proxy for the new one: "
            "give those labels to the proxy instead"
        )
    return notes
