"""HostConfig, field by field: the Engine's fields (API 1.24 to 1.52) and their limits.

A field outside the table is refused, so that new fields of a newer Engine are closed by default.
"""

from flettner.tools.docker_proxy.endpoints import links, network_mode, ports, publish_all
from flettner.tools.docker_proxy.fields import (
    FieldContext,
    FieldTable,
    Reasons,
    Rule,
    each,
    fields,
    flag,
    listed,
    nothing,
    number,
    one_of,
    shown,
    text,
    texts,
    values,
)
from flettner.tools.docker_proxy.mounts import binds, mounts, tmpfs
from flettner.tools.docker_proxy.policy import like_any

# What the oldest Engine masks; `systempaths=unconfined` of the command line is these lists sent empty.
MASKED = frozenset(
    f"/proc/{name}"
    for name in ("acpi", "kcore", "keys", "latency_stats", "timer_list", "sched_debug", "scsi")
) | {"/sys/firmware"}
READ_ONLY = frozenset(f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger"))
_GPU = {"gpu", "nvidia", "compute", "compute32", "graphics", "utility", "video", "display"}
_HARMLESS = ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")


def _all_of(needed: frozenset[str]) -> Rule:
    def rule(where: str, value: object, _: FieldContext) -> Reasons:
        if not isinstance(value, list) or not needed.issubset(map(str, value)):
            yield f"{where}: removes a restriction that the engine applies by default"

    return rule


def _capability(where: str, value: object, context: FieldContext) -> Reasons:
    if not isinstance(value, str) or value.upper().removeprefix("CAP_") not in context.policy.create.cap_add:
        yield f"{where}: {shown(value)} is not in the policy's create.cap_add"


def _security_opt(where: str, value: object, context: FieldContext) -> Reasons:
    create = context.policy.create
    # The engine itself adds label=disable to a container with the host's IPC.
    always = (*_HARMLESS, *(("label=disable", "label:disable") if create.ipc_host else ()))
    if value not in (*always, *create.security_opt):
        yield f"{where}: {shown(value)} is not in the policy's create.security_opt"


def _ipc(where: str, value: object, context: FieldContext) -> Reasons:
    if value == "host" and not context.policy.create.ipc_host:
        yield f"{where}: the host's IPC (create.ipc_host is false)"
    elif value not in ("", "none", "private", "shareable", "host"):
        yield f"{where}: {shown(value)} is not allowed"


def _device(where: str, value: object, context: FieldContext) -> Reasons:
    yield from fields({"PathOnHost": text, "PathInContainer": text, "CgroupPermissions": _permissions})(
        where, value, context
    )
    path = value.get("PathOnHost") if isinstance(value, dict) else value
    if path not in context.policy.create.devices:
        yield f"{where}: {shown(path)} is not in the policy's create.devices"


def _permissions(where: str, value: object, _: FieldContext) -> Reasons:
    if not isinstance(value, str) or set(value) - set("rwm"):
        yield f"{where}: {shown(value)} is not made of r, w, m"


def _gpus(where: str, value: object, context: FieldContext) -> Reasons:
    table = {
        "Driver": one_of("", "nvidia"),  # `cdi` may add any mount or hook
        "Count": number,
        "DeviceIDs": texts,
        "Capabilities": each(each(one_of(*sorted(_GPU)))),
        "Options": nothing,
    }
    yield from fields(table)(where, value, context)
    if not isinstance(value, dict):
        return
    allowed = context.policy.create.gpus
    if value.get("Count") and "*" not in allowed:
        yield f"{where}.Count: the policy's create.gpus names single devices: ask for those"
    ids = value.get("DeviceIDs")
    for device in ids if isinstance(ids, list) else []:
        if not isinstance(device, str) or not like_any(allowed, device):
            yield f"{where}.DeviceIDs: {shown(device)} is not in the policy's create.gpus"


def _oom_score(where: str, value: object, context: FieldContext) -> Reasons:
    yield from number(where, value, context)
    if isinstance(value, int) and value < 0:
        yield f"{where}: the kernel would kill other processes first"


def _sysctls(where: str, value: object, context: FieldContext) -> Reasons:
    yield from values(text)(where, value, context)
    for name in value if isinstance(value, dict) else ():
        if name not in context.policy.create.sysctls:
            yield f"{where}: {shown(name)} is not in the policy's create.sysctls"


RESTART = fields(
    {"Name": one_of("", "no", "always", "unless-stopped", "on-failure"), "MaximumRetryCount": number}
)
_LOG = fields(
    {
        "Type": listed(lambda policy: policy.create.log_drivers, "create.log_drivers", ""),
        "Config": values(text),
    }
)
_NUMBERS = (
    *("ShmSize", "CpuShares", "Memory", "NanoCpus", "BlkioWeight", "CpuPeriod", "CpuQuota", "KernelMemory"),
    *("KernelMemoryTCP", "MemoryReservation", "MemorySwap", "MemorySwappiness", "PidsLimit"),
    *("CpuCount", "CpuPercent", "IOMaximumIOps", "IOMaximumBandwidth"),
)
_NOTHING = (
    *(
        "Privileged",
        "PidMode",
        "UTSMode",
        "UsernsMode",
        "Cgroup",
        "CgroupParent",
        "VolumesFrom",
        "Annotations",
    ),
    *("DeviceCgroupRules", "OomKillDisable", "CpuRealtimePeriod", "CpuRealtimeRuntime", "Capabilities"),
    *("BlkioWeightDevice", "BlkioDeviceReadBps", "BlkioDeviceWriteBps"),
    *("BlkioDeviceReadIOps", "BlkioDeviceWriteIOps", "ContainerIDFile"),
)

HOST_CONFIG: FieldTable = {
    **dict.fromkeys(_NOTHING, nothing),
    **dict.fromkeys(_NUMBERS, number),
    **dict.fromkeys(("CpusetCpus", "CpusetMems"), text),
    **dict.fromkeys(("CapDrop", "Dns", "DnsOptions", "DnsSearch", "ExtraHosts", "GroupAdd"), texts),
    **dict.fromkeys(("AutoRemove", "ReadonlyRootfs", "Init"), flag),
    "Binds": binds,
    "Mounts": mounts,
    "Tmpfs": tmpfs,
    "VolumeDriver": one_of("", "local"),
    "StorageOpt": values(text, "size"),
    "LogConfig": _LOG,
    "NetworkMode": network_mode,
    "PortBindings": ports,
    "PublishAllPorts": publish_all,
    "Links": links,
    "RestartPolicy": RESTART,
    "ConsoleSize": each(number),
    "CapAdd": each(_capability),
    "SecurityOpt": each(_security_opt),
    "CgroupnsMode": one_of("", "private", "host"),  # `host` is the default with cgroups version 1
    "IpcMode": _ipc,
    "OomScoreAdj": _oom_score,
    "Sysctls": _sysctls,
    "Runtime": listed(lambda policy: policy.create.runtimes, "create.runtimes", "", "runc"),
    "Isolation": one_of("", "default"),
    "Devices": each(_device),
    "DeviceRequests": each(_gpus),
    "Ulimits": each(fields({"Name": text, "Soft": number, "Hard": number})),
    "MaskedPaths": _all_of(MASKED),
    "ReadonlyPaths": _all_of(READ_ONLY),
}
