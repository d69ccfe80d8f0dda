"""A policy, a harmless create body, host files, and escalations that must be refused."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from flettner.tools.docker_proxy.fields import FieldContext
from flettner.tools.docker_proxy.policy import ProxyPolicy, parse_policy

LABEL = "flettner.target"
TABLES: dict[str, Any] = {
    "containers": {"adopt": ["vllm"], "files": ["/etc/vllm/*.yaml"]},
    "create": {
        "images": ["vllm/vllm-openai:*"],
        "gpus": ["0", "1"],
        "runtimes": ["nvidia"],
        "devices": ["/dev/fuse"],
        "cap_add": ["SYS_NICE"],
        "sysctls": ["net.core.somaxconn"],
    },
    "mounts": {"read": ["/srv/models"], "write": ["/srv/cache/vllm"], "volumes": ["hf-cache", "vllm-*"]},
    "networks": {"names": ["bridge", "llm"], "aliases": ["chat"], "links": ["redis"]},
}
# path -> (resolved path, whether it is a directory or a regular file)
FILES = {
    "/srv/models": ("/srv/models", True),
    "/srv/models/llama": ("/srv/models/llama", True),
    "/srv/models/latest": ("/srv/models/llama", True),
    "/srv/models/escape": ("/", True),
    "/srv/models/escape/../x": ("/x", True),
    "/srv/models/x": ("/srv/models/x", True),
    "/srv/models/docker.sock": ("/srv/models/docker.sock", False),
    "/srv/models/engine": ("/run/docker.sock", False),
    "/srv/models-of-third-parties": ("/srv/models-of-third-parties", True),
    "/srv/cache/vllm": ("/srv/cache/vllm", True),
    "/srv/cache/vllm/below": ("/srv/cache/vllm/below", True),
    "/srv/models/../../etc": ("/etc", True),
    "/etc": ("/etc", True),
    "/etc/shadow": ("/etc/shadow", True),
    "/": ("/", True),
    "/run/docker.sock": ("/run/docker.sock", False),
    "/proc/1/root": ("/proc/1/root", True),
}


def files(path: str) -> tuple[str, bool]:
    if path == "/srv/models/private/of-root":
        raise PermissionError(13, "Permission denied")
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path]


def policy(**tables: dict[str, Any]) -> ProxyPolicy:
    """Return TABLES updated with `tables`, table by table."""
    return parse_policy(
        {**TABLES, **{name: {**TABLES.get(name, {}), **more} for name, more in tables.items()}}
    )


def context(**tables: dict[str, Any]) -> FieldContext:
    return FieldContext(policy=policy(**tables), files=files)


def body(host_config: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the create body of a green: the full HostConfig of an inspect, defaults included."""
    made = deepcopy(json.loads((Path(__file__).parent / "create_body.json").read_text()))
    made["HostConfig"].update(host_config or {})
    return {**made, **config}


class Escalation(NamedTuple):
    name: str
    host_config: dict[str, Any]
    config: dict[str, Any]
    reason: str


def _host(name: str, reason: str, **fields: Any) -> Escalation:  # noqa: ANN401
    return Escalation(name, fields, {}, reason)


def _top(name: str, reason: str, **fields: Any) -> Escalation:  # noqa: ANN401
    return Escalation(name, {}, fields, reason)


def _mount(name: str, reason: str, **fields: Any) -> Escalation:  # noqa: ANN401
    plain = {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True}
    return _host(name, reason, Mounts=[{**plain, **fields}])


def _volume(name: str, reason: str, **options: Any) -> Escalation:  # noqa: ANN401
    return _mount(name, reason, Type="volume", Source="hf-cache", VolumeOptions=options)


def _endpoint(name: str, reason: str, **fields: Any) -> Escalation:  # noqa: ANN401
    return _top(name, reason, NetworkingConfig={"EndpointsConfig": {"llm": fields}})


EVERYWHERE = "0.0.0.0"  # noqa: S104 - must be refused
DEVICE = {"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rwm"}
GPUS = {"Driver": "", "Count": 0, "DeviceIDs": ["0"], "Capabilities": [["gpu"]], "Options": {}}
ESCALATIONS = (
    # kernel namespaces
    _host("privileged", "HostConfig.Privileged: must be left empty", Privileged=True),
    _host("privileged by a text", "HostConfig.Privileged: must be left empty", Privileged="true"),
    _host("the host's processes", "HostConfig.PidMode: must be left empty", PidMode="host"),
    _host("another's processes", "HostConfig.PidMode: must be left empty", PidMode="container:vllm"),
    _host("the host's name", "HostConfig.UTSMode: must be left empty", UTSMode="host"),
    _host("the host's users", "HostConfig.UsernsMode: must be left empty", UsernsMode="host"),
    _host("the host's IPC", "create.ipc_host is false", IpcMode="host"),
    _host("another's IPC", "HostConfig.IpcMode", IpcMode="container:vllm"),
    _host("the host's network", "networks.host is false", NetworkMode="host"),
    _host("another's network", "the network of another container", NetworkMode="container:vllm"),
    _host("a network by a path", "is not the name of a network", NetworkMode="/proc/1/ns/net"),
    _host("a cgroup of its choice", "HostConfig.CgroupParent: must be left empty", CgroupParent="/"),
    _host("another's cgroup", "HostConfig.Cgroup: must be left empty", Cgroup="container:vllm"),
    # capabilities and confinement
    _host("a capability", "create.cap_add", CapAdd=["SYS_ADMIN"]),
    _host("a capability by its long name", "create.cap_add", CapAdd=["CAP_SYS_PTRACE"]),
    _host("all capabilities", "create.cap_add", CapAdd=["ALL"]),
    _host("no seccomp", "create.security_opt", SecurityOpt=["seccomp=unconfined"]),
    _host("no AppArmor", "create.security_opt", SecurityOpt=["apparmor:unconfined"]),
    _host("no SELinux", "create.security_opt", SecurityOpt=["label=disable"]),
    _host("new privileges", "create.security_opt", SecurityOpt=["no-new-privileges:false"]),
    _host("nothing masked", "HostConfig.MaskedPaths: removes a restriction", MaskedPaths=[]),
    _host("one path unmasked", "HostConfig.MaskedPaths: removes a restriction", MaskedPaths=["/proc/acpi"]),
    _host("/proc writable", "HostConfig.ReadonlyPaths: removes a restriction", ReadonlyPaths=[]),
    _host("a sysctl", "create.sysctls", Sysctls={"kernel.core_pattern": "|/x"}),
    _host(
        "annotations for the runtime", "HostConfig.Annotations", Annotations={"run.oci.hooks.stderr": "/x"}
    ),
    _host("a runtime", "create.runtimes", Runtime="runc-unconfined"),
    # devices
    _host("a disk", "create.devices", Devices=[{**DEVICE, "PathOnHost": "/dev/sda"}]),
    _host("a disk by a detour", "create.devices", Devices=[{**DEVICE, "PathOnHost": "/dev/fuse/../sda"}]),
    _host("a permission", "is not made of r, w, m", Devices=[{**DEVICE, "CgroupPermissions": "rwx"}]),
    _host(
        "every device", "HostConfig.DeviceCgroupRules: must be left empty", DeviceCgroupRules=["a *:* rwm"]
    ),
    _host("all GPUs", "create.gpus", DeviceRequests=[{**GPUS, "Count": -1, "DeviceIDs": None}]),
    _host("another's GPU", "create.gpus", DeviceRequests=[{**GPUS, "DeviceIDs": ["0", "7"]}]),
    _host("a CDI device", "DeviceRequests.Driver", DeviceRequests=[{**GPUS, "Driver": "cdi"}]),
    _host("a driver's option", "Options: must be", DeviceRequests=[{**GPUS, "Options": {"x": "y"}}]),
    # host files
    _host("the root", "outside the policy's mounts.read", Binds=["/:/host:ro"]),
    _host("the engine's socket", "no container may see", Binds=["/run/docker.sock:/d:ro"]),
    _host("a directory not listed", "outside the policy's mounts.read", Binds=["/etc:/e:ro"]),
    _host("a neighbour with the same start", "outside", Binds=["/srv/models-of-third-parties:/m:ro"]),
    _host("writing where only reading is", "mounts.write", Binds=["/srv/models:/m"]),
    _host("writing below a writable one", "mounts.write", Binds=["/srv/cache/vllm/below:/m"]),
    _host("out by dots", "leads to '/etc'", Binds=["/srv/models/../../etc:/m:ro"]),
    _host("out by a link", "leads to '/'", Binds=["/srv/models/escape:/m:ro"]),
    _host("out by a link and dots", "leads to '/x'", Binds=["/srv/models/escape/../x:/m:ro"]),
    _host("a link to the engine's socket", "no container may see", Binds=["/srv/models/engine:/m:ro"]),
    _host("a socket", "is a socket, device or pipe", Binds=["/srv/models/docker.sock:/m:ro"]),
    _host("a directory yet to be made", "cannot resolve", Binds=["/srv/models/new:/m:ro"]),
    _host("what the proxy cannot see", "Permission denied", Binds=["/srv/models/private/of-root:/m:ro"]),
    _host("the processes' roots", "no container may see", Binds=["/proc/1/root:/m:ro"]),
    _host("a shared bind", "mode 'shared'", Binds=["/srv/models:/m:ro,shared"]),
    _host("a slave bind", "mode 'rslave'", Binds=["/srv/models:/m:ro,rslave"]),
    _host("a relabelled bind", "mode 'Z'", Binds=["/srv/models:/m:ro,Z"]),
    _host("a relative bind", "neither an absolute path", Binds=["../etc:/m:ro"]),
    _host("a bind of four parts", "more than three parts", Binds=["/srv/models:/m:ro:/etc"]),
    _host("over /proc", "mounted over /proc/sys", Binds=["/srv/models:/proc/sys:ro"]),
    _host("over /sys by a detour", "mounted over /sys", Binds=["/srv/models:/m/../sys:ro"]),
    _host("a bind that is not a string", "must be a string", Binds=[{"Source": "/"}]),
    _mount("a mount of the root", "outside the policy's mounts.read", Source="/"),
    _mount("a writable mount", "mounts.write", ReadOnly=False),
    _mount("a shared mount", "BindOptions.Propagation", BindOptions={"Propagation": "rshared"}),
    _mount("a mount that makes its source", "CreateMountpoint", BindOptions={"CreateMountpoint": True}),
    _mount("a mount of a pipe", "is not one of bind, volume, tmpfs", Type="npipe"),
    _mount("a mount of an image", "is not one of bind, volume, tmpfs", Type="image"),
    _mount("a mount whose type changes case", "is not one of", Type="Bind"),
    _mount("a source that is a list", "HostConfig.Mounts.Source: ", Source=["/"]),
    _volume(
        "a volume that is a bind",
        "DriverConfig.Options: must be",
        DriverConfig={"Name": "local", "Options": {"type": "none", "o": "bind", "device": "/"}},
    ),
    _volume("a volume driver", "DriverConfig.Name", DriverConfig={"Name": "nfs"}),
    _volume("a part of a volume", "VolumeOptions.Subpath", Subpath="../../etc"),
    _mount("a volume with a path", "not the name of a volume", Type="volume", Source="../../etc"),
    _host("a volume driver for all", "HostConfig.VolumeDriver", VolumeDriver="nfs"),
    _host("another's volumes", "HostConfig.VolumesFrom: must be left empty", VolumesFrom=["vllm"]),
    _host("a tmpfs with devices", "the option 'dev'", Tmpfs={"/t": "dev"}),
    _host("a tmpfs over /proc", "mounted over /proc", Tmpfs={"/proc": ""}),
    _top("a volume with a source", "Volumes: the key", Volumes={"/etc:/host": {}}),
    # the network
    _host("a port for everybody", "networks.publish", PortBindings={"8000/tcp": [{"HostIp": EVERYWHERE}]}),
    _host(
        "a port for everybody by default", "networks.publish", PortBindings={"8000/tcp": [{"HostPort": "80"}]}
    ),
    _host("all ports", "HostConfig.PublishAllPorts", PublishAllPorts=True),
    _host("another's environment", "networks.links", Links=["postgres:db"]),
    _endpoint("another's name", "networks.aliases", Aliases=["postgres"]),
    _endpoint("an endpoint's driver option", "DriverOpts: must be", DriverOpts={"x.sysctls": "y"}),
    _endpoint("a link on a network", "Links: must be", Links=["postgres:db"]),
    _top("another's name as host name", "networks.aliases", Hostname="postgres"),
    # the rest
    _host("a log driver", "create.log_drivers", LogConfig={"Type": "syslog", "Config": {}}),
    _host("protection from the OOM killer", "kill other processes first", OomScoreAdj=-1000),
    _host("no OOM killer", "HostConfig.OomKillDisable: must be left empty", OomKillDisable=True),
    _host("real time", "HostConfig.CpuRealtimeRuntime: must be left empty", CpuRealtimeRuntime=950000),
    _host("an unknown field", "HostConfig.Future: not a field", Future="x"),
    _host("an unknown field, empty", "HostConfig.Future: not a field", Future=None),
    _host("a key in odd case", "would read this key as Privileged", privileged=True),
    Escalation("a key with a long s", {"U\u017fernsMode": "host"}, {}, "would read this key as UsernsMode"),
    Escalation("a key with a Kelvin sign", {"Networ\u212aMode": "host"}, {}, "this key as NetworkMode"),
    _top("a host field next to HostConfig", "Privileged: not a field", Privileged=True),
    _top(
        "HostConfig twice in two cases", "would read this key as HostConfig", hostConfig={"Privileged": True}
    ),
    _top("no label", "flettner's label flettner.target is missing", Labels={"mine": "1"}),
    _top("no labels", "flettner's label flettner.target is missing", Labels=None),
    _top(
        "a label in odd case",
        "flettner's label flettner.target is missing",
        Labels={"Flettner.Target": "chat"},
    ),
    _top("no image", "Image: none is named", Image=""),
    _top("HostConfig as a list", "HostConfig: must be an object", HostConfig=[]),
)
