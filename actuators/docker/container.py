"""A container: the document of `docker inspect`, parsed once, and what flettner keeps of the container.

All fields that decide anything are here under one name each. The document itself stays in `document` for the
uses that need fields which this module does not know: a clone copies Config and HostConfig, a comparison goes
through them field by field, and a dry run copies device and security options.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from flettner.actuators.docker.mounted_files import Mount, mounted_files
from flettner.actuators.vllm.serve_command import ContainerCommand, ReadFile
from flettner.agent.domain.model import Server
from flettner.primitives.address import Address
from flettner.vllm_facts.sizing.effective_flags import chooses_cpus

Json = dict[str, Any]

NEVER: Mapping[str, Any] = {"Name": "no", "MaximumRetryCount": 0}
"""The restart policy of a container that Docker never starts again."""

BUILT_IN_NETWORKS = frozenset({"bridge", "host", "none", "default"})

_ACTIVE = frozenset({"running", "paused", "restarting"})
_ID_SHOWN = 12  # digits of an id in host names and aliases
_ENDPOINT_OPTIONS = ("DriverOpts", "GwPriority", "Links")
_COMPOSE = "com.docker.compose.project"

_ALL_GPUS = "all"
_NO_GPUS = frozenset({"", "none", "void"})  # of NVIDIA_VISIBLE_DEVICES
_NO_CUDA_DEVICE = frozenset({"", "-1", "NoDevFiles"})  # of CUDA_VISIBLE_DEVICES
_OTHER_DEVICES = ("/dev/kfd", "/dev/dri", "/dev/habanalabs", "/dev/accel", "/dev/davinci")


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
class Gpus:
    """`ids`: indices or UUIDs, in the order of the container. `unknown`: why they cannot be identified."""

    ids: tuple[str, ...] = ()
    all: bool = False  # every GPU of the host
    unknown: str = ""

    @property
    def any(self) -> bool:
        return bool(self.ids or self.all or self.unknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container. It holds secrets: `env`, `api_key` and `document` are left out of its repr.

    The last fields are those that the registry adds for a container of its target.
    """

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
    server: str = ""  # the name of its server
    ours: bool = False  # flettner has made it
    like: str = ""  # the server that it was made like
    epoch: int = 0  # the newest of the daemons that have made or kept it
    policy: Json = field(default_factory=lambda: dict(NEVER))  # its restart policy while it is not stopped
    stopped: bool = False  # by flettner: only a launch starts it again
    asleep_since: str = ""  # `state.started_at` of the run that was put to sleep; empty: none was
    gone: bool = False  # removed by flettner; known by what is kept of it

    @classmethod
    def parse(cls, inspect: Json, read_file: ReadFile | None = None) -> Self:
        """`inspect`: as the Engine writes it, or as the registry has kept it.

        `read_file` reads the `--config` file of the server; None: from the folders mounted from this host.
        It may block. A command that cannot be read is no error here: see ServeCommand.
        """
        config, host = inspect.get("Config") or {}, inspect.get("HostConfig") or {}
        settings = inspect.get("NetworkSettings") or {}
        working_dir = str(config.get("WorkingDir") or "")
        mounts = tuple(Mount.parse(mount) for mount in inspect.get("Mounts") or ())
        serve = ContainerCommand.parse(
            config.get("Entrypoint") or (),
            config.get("Cmd") or (),
            config.get("Env") or (),
            working_dir,
            read_file or mounted_files(mounts, working_dir),
        )
        connected = settings.get("Networks") or {}
        networks = {name: Endpoint.parse(endpoint or {}) for name, endpoint in connected.items()}
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

    def seen_as(self, inspected: "Container") -> "Container":
        """Return it as it is now, with what the registry added to it."""
        return replace(
            inspected,
            server=self.server,
            ours=self.ours,
            like=self.like,
            epoch=self.epoch,
            policy=self.policy,
            stopped=self.stopped,
            asleep_since=self.asleep_since,
        )

    def to_server(self) -> Server:
        """Return its server as `observe` does."""
        return Server(
            name=self.server,
            setting=self.serve.setting,
            address=self.address,
            ours=self.ours,
            like=self.like,
            on_cpus=chooses_cpus(self.env),
        )

    @property
    def active(self) -> bool:
        """Whether it runs, is paused, or is about to be started again."""
        return self.state.status in _ACTIVE

    @property
    def asleep(self) -> bool:
        """Whether flettner has put it to sleep, and no third party has started it again since."""
        return self.active and bool(self.asleep_since) and self.asleep_since == self.state.started_at

    @property
    def start_key(self) -> str:
        """The key of StartTimes: starts of the same image and model take about as long."""
        return f"{self.image} {self.serve.setting.get('model', '')}"

    @property
    def compose_project(self) -> str:
        return self.labels.get(_COMPOSE, "")

    @property
    def env(self) -> dict[str, str]:
        return _env_of(self.serve.env)

    @property
    def has_own_ports(self) -> bool:
        """Whether it has ports that can be published: not those of the host or of another container."""
        return self.network_mode not in {"host", "none"} and not self.network_mode.startswith("container:")

    @property
    def restarts(self) -> bool:
        """Whether Docker starts it again when it ends."""
        return is_restarting(self.restart_policy)

    @property
    def disconnected(self) -> bool:
        """Whether it has left the networks in which clients reach it."""
        own = self.network_mode not in {"host", "none"}
        return own and not any(endpoint.address for endpoint in self.networks.values())

    @property
    def silence(self) -> str:
        """The reason for failed probes that its state names; empty: none."""
        if self.state.paused:
            return "its container is paused (docker unpause)"
        if self.disconnected:
            return "its container is disconnected from its network (docker network connect)"
        return "its own health check says unhealthy" if self.state.health == "unhealthy" else ""


def is_restarting(policy: Mapping[str, Any]) -> bool:
    return policy.get("Name", "no") not in {"", "no"}


def _env_of(lines: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (str(line).partition("=") for line in lines)}


def _mode(mode: str, networks: Mapping[str, Endpoint]) -> str:
    """Return the network mode, with the name of a network instead of its id."""
    for name, endpoint in networks.items():
        if (endpoint.network_id or "-").startswith(mode):
            return name
    return mode


def _address(
    serve: ContainerCommand,
    mode: str,
    ports: Mapping[str, Sequence[Mapping[str, str]] | None],
    endpoints: Iterable[Endpoint],
) -> str:
    """Return where this host reaches the server: a published port, the host's network, its own address."""
    if serve.error:
        return ""
    if mode == "host":
        return str(Address("", serve.port).reached_here())
    for binding in sorted(ports.get(f"{serve.port}/tcp") or (), key=lambda binding: ":" in binding["HostIp"]):
        return str(Address(binding["HostIp"], int(binding["HostPort"])).reached_here())
    return next(
        (str(Address(endpoint.address, serve.port)) for endpoint in endpoints if endpoint.address), ""
    )


def _published(
    serve: ContainerCommand,
    asked: Mapping[str, Sequence[Mapping[str, str]] | None],
    given: Mapping[str, Sequence[Mapping[str, str]] | None],
) -> tuple[str, ...]:
    """Return the ports of a running container, or those that it was created with."""
    key = f"{serve.port}/tcp"
    ports = [binding["HostPort"] for binding in (*(given.get(key) or ()), *(asked.get(key) or ()))]
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
    named |= {mount["Target"] for mount in host.get("Mounts") or () if mount.get("Source")}
    return {
        mount.destination: mount.name
        for mount in mounts
        if mount.type == "volume" and mount.destination not in named
    }


def parse_gpus(host: Json, env: Mapping[str, str]) -> Gpus:
    """From `--gpus`, the nvidia runtime, or device files, filtered by CUDA_VISIBLE_DEVICES.

    `host`: HostConfig of the container.
    """
    asked = [request for request in host.get("DeviceRequests") or () if is_for_gpus(request)]
    if asked:
        gpus = _from_requests(asked)
    elif "nvidia" in str(host.get("Runtime") or ""):
        gpus = _from_runtime(env.get("NVIDIA_VISIBLE_DEVICES", ""))
    else:
        gpus = _from_devices([str(device.get("PathOnHost") or "") for device in host.get("Devices") or ()])
    return _filter_visible(gpus, env["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in env else gpus


def is_for_gpus(request: Json) -> bool:
    capabilities = {name for names in request.get("Capabilities") or () for name in names}
    return "gpu" in capabilities or request.get("Driver") in {"nvidia", "cdi"}


def _from_requests(requests: Sequence[Json]) -> Gpus:
    devices: list[str] = []
    for request in requests:
        ids = [str(gpu).rpartition("=")[2] for gpu in request.get("DeviceIDs") or ()]  # nvidia.com/gpu=0
        count = int(request.get("Count") or 0)
        if count < 0 or _ALL_GPUS in ids:
            return Gpus(all=True)
        devices += ids or map(str, range(count))  # `--gpus 2` gives the first two
    return _parse_ids(devices)


def _from_runtime(visible: str) -> Gpus:
    if visible == _ALL_GPUS:
        return Gpus(all=True)
    return Gpus() if visible in _NO_GPUS else _parse_ids(visible.split(","))


def _from_devices(paths: Sequence[str]) -> Gpus:
    other = [path for path in paths if path.startswith(_OTHER_DEVICES)]
    if other:
        return Gpus(unknown=f"{other[0]} is an unknown kind of device")
    numbers = [path.removeprefix("/dev/nvidia") for path in paths if path.startswith("/dev/nvidia")]
    return Gpus(ids=tuple(number for number in numbers if number.isdecimal()))


def _parse_ids(ids: Sequence[str]) -> Gpus:
    names = tuple(dict.fromkeys(word.strip() for word in ids if word.strip()))
    sliced = [word for word in names if word.startswith("MIG-") or ":" in word]
    return Gpus(ids=names, unknown=f"{sliced[0]} is a slice (MIG)" if sliced else "")


def _filter_visible(gpus: Gpus, visible: str) -> Gpus:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; it counts within the GPUs of the container."""
    if visible.strip() in _NO_CUDA_DEVICE or not gpus.any:
        return Gpus()
    names = [word.strip() for word in visible.split(",")]
    if gpus.all or gpus.unknown:
        visible_ids = _parse_ids(names)
        return replace(visible_ids, unknown=visible_ids.unknown or gpus.unknown)
    ids = []
    for name in names:
        if name.isdecimal() and int(name) >= len(gpus.ids):
            break  # CUDA ignores everything after a missing index
        ids.append(gpus.ids[int(name)] if name.isdecimal() else name)
    return _parse_ids(ids)
