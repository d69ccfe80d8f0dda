"""Make the body of a container that is like another one, except for flags, name, ports and networks.

The create call takes what inspect shows, except for a dozen fields that belong to one container only. Those
are left out or replaced here, and each one that an operator may notice is noted.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from flettner.actuators.docker.obstacles import foreign_label, notes_of, obstacles_of_container
from flettner.actuators.docker.spec import BUILT_IN_NETWORKS, NEVER, ContainerSpec, Endpoint, Json
from flettner.actuators.vllm.control import with_own_control
from flettner.actuators.vllm.scheduler_class import SchedulerFolders
from flettner.agent.domain.errors import ActError
from flettner.vllm_facts.values import Value

_DOCUMENT = ("Id", "Name", "Image", "Config", "HostConfig", "Mounts", "NetworkSettings")
_NOT_CONFIG = frozenset(
    {"ArgsEscaped", "AttachStderr", "AttachStdin", "AttachStdout", "Hostname", "MacAddress", "OnBuild"}
)
_NOT_HOST = frozenset({"ConsoleSize", "ContainerIDFile", "Links"})
_LONGEST_HOSTNAME = 63
IN_CONTAINER = SchedulerFolders(Path("/opt/flettner/scheduler"), Path("/opt/flettner/control"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """A container to be made."""

    image: str  # the pinned id: the tag may point to another image by now
    body: Json = field(repr=False)  # for POST /containers/create; holds secrets
    name: str
    argv: tuple[str, ...] = field(repr=False)  # program and flags of its server
    networks: tuple[tuple[str, Json], ...] = ()  # to be connected between create and start
    notes: tuple[str, ...] = ()  # differences from the original, for the operator who approves


def document_to_keep(spec: ContainerSpec, image: Json | None) -> Json:
    """Return what must be kept of a container to make a like one when it is gone, for ContainerSpec.parse.

    `ImageDigest` is added: the image can be pulled by it. The document holds secrets: keep it private.
    """
    inspect = spec.document
    digests = (image or {}).get("RepoDigests") or [spec.image_digest]
    kept = {key: deepcopy(inspect[key]) for key in _DOCUMENT if key in inspect}
    networks = (inspect.get("NetworkSettings") or {}).get("Networks") or {}
    return {**kept, "NetworkSettings": {"Networks": deepcopy(networks)}, "ImageDigest": digests[0]}


def clone(
    spec: ContainerSpec,
    *,
    name: str,
    labels: Mapping[str, str],
    setting: Mapping[str, Value],
    host_port_ip: str = "127.0.0.1",
    host_port: int | None = None,
    port: int | None = None,
    scheduler: SchedulerFolders | None = None,
) -> CreateRequest:
    """Return the container `name`: like `spec`, with this full setting (empty: with its own).

    It never restarts, is reached on `host_port` of `host_port_ip`, and answers to its own name only. Without
    `host_port` the Engine chooses one, a new one at each start. In the network of the host no port is
    published: the server listens on `port`. `scheduler`: folders of this host, to be mounted. Raises
    FlagError if the flags cannot be changed, ActError for any other obstacle.
    """
    changed = spec.serve.with_setting(setting, port=port)
    if problems := obstacles_of_container(spec):
        raise ActError("; ".join(problems))
    body = {
        **_config(spec, name, labels),
        "Image": spec.image,
        "Env": _env(changed.env, name, scheduler),
        "Entrypoint": changed.entrypoint,
        "Cmd": changed.command,
        "HostConfig": _host_config(spec, scheduler),
    }
    if spec.has_own_ports:
        listens = spec.serve.port if port is None else port
        bound = dict.fromkeys(_published(spec, listens), "")
        bound |= {f"{listens}/tcp": str(host_port or "")}
        _publish(body, bound, host_port_ip)
    elif port is None:
        raise ActError("a container in the network of the host needs a port of its own to listen on")
    if network := _network_at_create(spec, name):
        body["NetworkingConfig"] = {"EndpointsConfig": network}
    return CreateRequest(
        image=spec.image,
        body=body,
        name=name,
        argv=changed.argv,
        networks=_networks_before_start(spec, name),
        notes=notes_of(spec),
    )


def mount_options(spec: ContainerSpec) -> list[Json]:
    """`Mounts` of a like container: `--mount type=volume,target=/data` by the volume's real name."""
    names = spec.anonymous_volumes
    return [
        {**one, "Source": names[one["Target"]]} if one["Target"] in names else dict(one)
        for one in spec.document["HostConfig"].get("Mounts") or ()
    ]


def _config(spec: ContainerSpec, name: str, labels: Mapping[str, str]) -> Json:
    kept = {
        key: deepcopy(value)
        for key, value in spec.document["Config"].items()
        if key not in _NOT_CONFIG and value is not None
    }
    own = {key: value for key, value in spec.labels.items() if not foreign_label(key)}
    return {**kept, **_hostname(spec, name), "Labels": {**own, **labels}}


def _env(lines: list[str], name: str, scheduler: SchedulerFolders | None) -> list[str]:
    """Lines without a value stay as they are."""
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    own = IN_CONTAINER.add_to(given, name) if scheduler else with_own_control(given, name)
    kept = [
        f"{line.partition('=')[0]}={own[line.partition('=')[0]]}" if "=" in line else line for line in lines
    ]
    return [*kept, *(f"{key}={value}" for key, value in own.items() if key not in given)]


def _hostname(spec: ContainerSpec, name: str) -> Json:
    """A chosen host name is also a name in the network, so green gets another one."""
    if not spec.hostname:
        return {}
    if spec.network_mode == "host":
        return {"Hostname": spec.hostname}
    return {"Hostname": re.sub(r"[^A-Za-z0-9-]", "-", name)[:_LONGEST_HOSTNAME].strip("-")}


def _scheduler_mounts(scheduler: SchedulerFolders) -> list[Json]:
    """As mounts: unlike a bind, one whose folder this host lacks is refused with a clear error."""
    return [
        {"Type": "bind", "Source": str(there), "Target": str(here), "ReadOnly": here == IN_CONTAINER.package}
        for there, here in (
            (scheduler.package, IN_CONTAINER.package),
            (scheduler.sockets, IN_CONTAINER.sockets),
        )
    ]


def _host_config(spec: ContainerSpec, scheduler: SchedulerFolders | None) -> Json:
    kept = {
        key: deepcopy(value)
        for key, value in spec.document["HostConfig"].items()
        if key not in _NOT_HOST and value is not None
    }
    return {
        **kept,
        "Binds": _binds(spec),
        "Mounts": [*mount_options(spec), *(_scheduler_mounts(scheduler) if scheduler else ())],
        "Links": [f"{other}:{alias}" for other, alias in spec.links],
        "AutoRemove": False,  # the Engine would remove it, log included, before its end was examined
        "RestartPolicy": dict(NEVER),
        "PortBindings": {},
        "PublishAllPorts": False,
    }


def _binds(spec: ContainerSpec) -> list[str]:
    """Anonymous volumes by name: without it the Engine would make new, empty ones."""
    by_mount = {one["Target"] for one in mount_options(spec)}
    read_only = {one.destination for one in spec.mounts if not one.writable}
    volumes = [
        f"{name}:{path}" + (":ro" if path in read_only else "")
        for path, name in sorted(spec.anonymous_volumes.items())
        if path not in by_mount
    ]
    return [*spec.binds, *volumes]


def _published(spec: ContainerSpec, listens: int) -> list[str]:
    """Return the ports to publish: those of the original, and the one that the server listens on."""
    exposed = spec.exposed_ports if spec.publish_all else ()
    return sorted({*spec.bound_ports, *exposed, f"{listens}/tcp"})


def _publish(body: Json, ports: Mapping[str, str], ip: str) -> None:
    body["ExposedPorts"] = {**(body.get("ExposedPorts") or {}), **{port: {} for port in ports}}
    body["HostConfig"]["PortBindings"] = {
        port: [{"HostIp": ip, "HostPort": there}] for port, there in ports.items()
    }


def _network_at_create(spec: ContainerSpec, alias: str) -> dict[str, Json]:
    """Return the network of the create body: older Engines take one only, built-in ones are not named.

    Raises ActError for a network that the container was started in and has left.
    """
    mode = spec.network_mode
    if not spec.has_own_ports or mode in BUILT_IN_NETWORKS:
        return {}
    if mode not in spec.networks:
        raise ActError(
            f"the container was started in the network {mode} and is not in it now: "
            f"`docker network connect {mode} {spec.name}`, or recreate it without"
        )
    return {mode: _endpoint(spec.networks[mode], alias)}


def _networks_before_start(spec: ContainerSpec, alias: str) -> tuple[tuple[str, Json], ...]:
    others = sorted(spec.networks.keys() - BUILT_IN_NETWORKS - {spec.network_mode})
    return tuple((name, _endpoint(spec.networks[name], alias)) for name in others)


def _endpoint(endpoint: Endpoint, alias: str) -> Json:
    """Without the addresses and names of blue: Docker's DNS would send it traffic of blue at once."""
    return {**endpoint.options, "Aliases": [alias]}
