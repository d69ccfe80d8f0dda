"""A container as the actuator knows it: the document of `docker inspect`, parsed once.

All fields that decide anything are here under one name each. The document itself stays in `document` for the
three uses that need fields which this module does not know: a clone copies Config and HostConfig, a
comparison goes through them field by field, and a dry run copies device and security options.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from flettner.actuators.docker.gpus import Gpus, parse_gpus
from flettner.actuators.docker.mounted_files import Mount, mounted_files
from flettner.actuators.host.origin import Origin
from flettner.actuators.vllm.serve_command import ContainerCommand, ReadFile
from flettner.primitives.address import Address

Json = dict[str, Any]

NEVER: Mapping[str, Any] = {"Name": "no", "MaximumRetryCount": 0}
"""The restart policy of a container that Docker never starts again."""

BUILT_IN_NETWORKS = frozenset({"bridge", "host", "none", "default"})

_ACTIVE = frozenset({"running", "paused", "restarting"})
_ID_SHOWN = 12  # digits of an id in host names and aliases
_ENDPOINT_OPTIONS = ("DriverOpts", "GwPriority", "Links")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    status: str = ""  # created, running, paused, restarting, exited, …
    running: bool = False  # also while it is paused or restarting
    paused: bool = False
    restarting: bool = False
    oom_killed: bool = False
    exit_code: int = 0
    pid: int = 0  # of its first process, as the Engine sees it; 0: none
    error: str = ""  # why it could not be started
    started_at: str = ""  # ISO 8601; a new one at every start
    health: str = ""  # of the image's own health check: healthy, unhealthy, starting

    @classmethod
    def parse(cls, state: Json) -> Self:
        return cls(
            status=str(state.get("Status") or ""),
            running=bool(state.get("Running")),
            paused=bool(state.get("Paused")),
            restarting=bool(state.get("Restarting")),
            oom_killed=bool(state.get("OOMKilled")),
            exit_code=int(state.get("ExitCode") or 0),
            pid=int(state.get("Pid") or 0),
            error=str(state.get("Error") or ""),
            started_at=str(state.get("StartedAt") or ""),
            health=str((state.get("Health") or {}).get("Status") or ""),
        )

    @property
    def active(self) -> bool:
        return self.status in _ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The connection of a container to one network."""

    network_id: str = ""
    address: str = ""
    fixed_address: str = ""  # requested by `--ip`
    aliases: tuple[str, ...] = ()
    options: Json = field(default_factory=dict)  # verbatim; identity and what the Engine generates left out

    @classmethod
    def parse(cls, endpoint: Json) -> Self:
        ipam = endpoint.get("IPAMConfig") or {}
        return cls(
            network_id=str(endpoint.get("NetworkID") or ""),
            address=str(endpoint.get("IPAddress") or ""),
            fixed_address=str(ipam.get("IPv4Address") or ipam.get("IPv6Address") or ""),
            aliases=tuple(endpoint.get("Aliases") or ()),
            options={key: endpoint[key] for key in _ENDPOINT_OPTIONS if endpoint.get(key)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container. It holds secrets: `env`, `api_key` and `document` are left out of its repr."""

    id: str
    name: str
    image: str  # id
    image_tag: str
    image_digest: str  # where the image can be pulled again; known of a container that was kept only
    serve: ContainerCommand
    address: str  # host:port where this host reaches the server; empty: nowhere
    labels: Mapping[str, str]
    hostname: str  # set by `--hostname`; empty: the Engine's choice
    mac_address: str
    network_mode: str  # a network by its name
    networks: Mapping[str, Endpoint]
    links: tuple[tuple[str, str], ...]  # `--link`: the other container, and the name it has in this one
    bound_ports: tuple[str, ...]  # published: "8000/tcp"
    published: tuple[str, ...]  # the ports of this host on which its server is reached
    exposed_ports: tuple[str, ...]
    publish_all: bool
    mounts: tuple[Mount, ...]
    binds: tuple[str, ...]  # `-v`
    anonymous_volumes: Mapping[str, str]  # path inside -> name that the Engine gave it
    gpus: Gpus
    cpus: str  # "0-3,8"; empty: all
    memory_limit: int  # bytes; 0: none
    restart_policy: Json
    auto_remove: bool  # `--rm`
    log_driver: str
    pid_mode: str
    ipc_mode: str
    state: ContainerState
    restart_count: int
    document: Json = field(repr=False, compare=False)

    @classmethod
    def parse(cls, inspect: Json, read_file: ReadFile | None = None) -> Self:
        """`inspect`: as the Engine writes it, or as `clone.document_to_keep` has kept it.

        `read_file` reads the `--config` file of the server; None: from the folders mounted from this host.
        It may block. A command that cannot be read is no error here: see ServeCommand.
        """
        config, host = inspect.get("Config") or {}, inspect.get("HostConfig") or {}
        settings = inspect.get("NetworkSettings") or {}
        working_dir = str(config.get("WorkingDir") or "")
        mounts = tuple(Mount.parse(one) for one in inspect.get("Mounts") or ())
        serve = ContainerCommand.parse(
            config.get("Entrypoint") or (),
            config.get("Cmd") or (),
            config.get("Env") or (),
            working_dir,
            read_file or mounted_files(mounts, working_dir),
        )
        networks = {name: Endpoint.parse(one or {}) for name, one in (settings.get("Networks") or {}).items()}
        mode = _mode(str(host.get("NetworkMode") or "default"), networks)
        container_id = str(inspect.get("Id") or "")
        return cls(
            id=container_id,
            name=str(inspect.get("Name") or "").removeprefix("/"),
            image=str(inspect.get("Image") or ""),
            image_tag=str(config.get("Image") or ""),
            image_digest=str(inspect.get("ImageDigest") or ""),
            serve=serve,
            address=_address(serve, mode, settings.get("Ports") or {}, networks.values()),
            labels=dict(config.get("Labels") or {}),
            hostname=_chosen_hostname(container_id, config, host, mode),
            mac_address=str(config.get("MacAddress") or ""),
            network_mode=mode,
            networks=networks,
            links=tuple(_link(link) for link in host.get("Links") or ()),
            bound_ports=tuple(host.get("PortBindings") or ()),
            published=_published(serve, host.get("PortBindings") or {}, settings.get("Ports") or {}),
            exposed_ports=tuple(config.get("ExposedPorts") or ()),
            publish_all=bool(host.get("PublishAllPorts")),
            mounts=mounts,
            binds=tuple(host.get("Binds") or ()),
            anonymous_volumes=_anonymous_volumes(mounts, host),
            gpus=parse_gpus(host, _env_of(serve.env)),
            cpus=str(host.get("CpusetCpus") or ""),
            memory_limit=int(host.get("Memory") or 0),
            restart_policy=dict(host.get("RestartPolicy") or NEVER),
            auto_remove=bool(host.get("AutoRemove")),
            log_driver=str((host.get("LogConfig") or {}).get("Type") or ""),
            pid_mode=str(host.get("PidMode") or ""),
            ipc_mode=str(host.get("IpcMode") or ""),
            state=ContainerState.parse(inspect.get("State") or {}),
            restart_count=int(inspect.get("RestartCount") or 0),
            document=inspect,
        )

    @property
    def env(self) -> dict[str, str]:
        return _env_of(self.serve.env)

    @property
    def secrets(self) -> frozenset[str]:
        """Values that must not be shown anywhere."""
        origin = Origin(argv=self.serve.argv, env=self.env, cwd="")
        return origin.secrets | {self.serve.api_key} - {""}

    @property
    def has_own_ports(self) -> bool:
        """Whether it has ports that can be published: not those of the host or of another container."""
        return self.network_mode not in {"host", "none"} and not self.network_mode.startswith("container:")

    @property
    def restarts(self) -> bool:
        """Whether Docker starts it again when it ends."""
        return is_restarting(self.restart_policy)


def is_restarting(policy: Mapping[str, Any]) -> bool:
    return policy.get("Name", "no") not in {"", "no"}


def _env_of(lines: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (str(line).partition("=") for line in lines)}


def _mode(mode: str, networks: Mapping[str, Endpoint]) -> str:
    """Return the network mode, with the name of a network instead of its id."""
    return next((name for name, one in networks.items() if (one.network_id or "-").startswith(mode)), mode)


def _address(
    serve: ContainerCommand,
    mode: str,
    ports: Mapping[str, Sequence[Mapping[str, str]] | None],
    endpoints: Iterable[Endpoint],
) -> str:
    """By a published port, in the network of the host, or by the container's own address."""
    if serve.error:
        return ""
    if mode == "host":
        return str(Address("", serve.port).reached_here())
    for binding in sorted(ports.get(f"{serve.port}/tcp") or (), key=lambda one: ":" in one["HostIp"]):
        return str(Address(binding["HostIp"], int(binding["HostPort"])).reached_here())
    return next((str(Address(one.address, serve.port)) for one in endpoints if one.address), "")


def _published(
    serve: ContainerCommand,
    asked: Mapping[str, Sequence[Mapping[str, str]] | None],
    given: Mapping[str, Sequence[Mapping[str, str]] | None],
) -> tuple[str, ...]:
    """Return the ports of a running container, or those that it was created with."""
    key = f"{serve.port}/tcp"
    ports = [one["HostPort"] for one in (*(given.get(key) or ()), *(asked.get(key) or ()))]
    return tuple(sorted({port for port in ports if port}))


def _chosen_hostname(container_id: str, config: Json, host: Json, mode: str) -> str:
    hostname = str(config.get("Hostname") or "")
    shared = mode.startswith("container:") or host.get("UTSMode") == "host"
    return "" if shared or hostname == container_id[:_ID_SHOWN] else hostname


def _link(link: str) -> tuple[str, str]:
    other, _, alias = link.partition(":")
    return other.lstrip("/"), alias.rpartition("/")[2]


def _anonymous_volumes(mounts: Sequence[Mount], host: Json) -> dict[str, str]:
    """Return the volumes that were given no name: `-v /data`, `--mount target=/data`, VOLUME of an image."""
    named = {bind.split(":")[1] for bind in host.get("Binds") or () if ":" in bind}
    named |= {one["Target"] for one in host.get("Mounts") or () if one.get("Source")}
    return {
        mount.destination: mount.name
        for mount in mounts
        if mount.type == "volume" and mount.destination not in named
    }
