"""Host access of a container: binds, mounts, volumes and tmpfs.

dockerd cleans a bind's source textually (`a/link/../b` is `a/b`) and then follows links; a shell does the
reverse. Both results must be in a listed directory.
"""

import os
import posixpath
import re
import stat
from collections.abc import Iterator

from flettner.tools.docker_proxy.fields import (
    FieldContext,
    Reasons,
    each,
    fields,
    flag,
    nothing,
    number,
    one_of,
    shown,
    text,
    values,
)
from flettner.tools.docker_proxy.policy import SEALED, inside
from flettner.tools.docker_proxy.strict_json import Json

VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}")
_PRIVATE = ("private", "rprivate")
_MODES = {"ro", "rw", "nocopy", "consistent", "cached", "delegated", *_PRIVATE}
_TMPFS = re.compile(
    r"(rw|ro|exec|noexec|suid|nosuid|nodev|sync|noatime|(size|mode|uid|gid|nr_inodes)=[0-9a-z%]+)"
)


def host_files(path: str) -> tuple[str, bool]:
    """`fields.Files` on the real host. A path without permission is an OSError, too."""
    real = os.path.realpath(path, strict=True)
    mode = os.stat(real).st_mode  # noqa: PTH116
    return real, stat.S_ISDIR(mode) or stat.S_ISREG(mode)


def bind(where: str, value: object, context: FieldContext) -> Reasons:
    """Check a HostConfig.Binds line: `/source:/target[:mode,...]`, `volume:/target[...]` or `/anonymous`."""
    if not isinstance(value, str):
        yield f"{where}: must be a string"
        return
    match value.split(":"):
        case [only]:
            yield from target(where, only, context)
        case [origin, to, *modes] if len(modes) <= 1:
            yield from _bind_reasons(where, origin, to, set(",".join(modes).split(",")), context)
        case _:
            yield f"{where}: {shown(value)} has more than three parts"


def _bind_reasons(where: str, origin: str, to: str, modes: set[str], context: FieldContext) -> Reasons:
    yield from target(where, to, context)
    yield from _mode_reasons(where, modes, context)
    if origin.startswith("/"):
        yield from source(where, origin, "ro" not in modes, context)
    elif not VOLUME.fullmatch(origin):
        yield f"{where}: {shown(origin)} is neither an absolute path nor the name of a volume"


def _mode_reasons(where: str, modes: set[str], context: FieldContext) -> Reasons:
    allowed = _MODES | ({"z", "Z"} if context.policy.mounts.relabel else set())
    if {"ro", "rw"} <= modes:
        yield f"{where}: ro and rw at once"
    for mode in sorted(modes - allowed - {""}):
        yield f"{where}: the mode {shown(mode)} is not allowed"


def target(where: str, value: object, _: FieldContext) -> Reasons:
    """Check a path in the container: it must be outside the kernel's own file systems."""
    if not isinstance(value, str) or not value.startswith("/"):
        yield f"{where}: {shown(value)} is not an absolute path in the container"
        return
    path = _normalise(value)
    if path == "/" or any(inside(path, top) for top in ("/proc", "/sys")):
        yield f"{where}: nothing may be mounted over {path}"
    if inside(path, "/dev") and not inside(path, "/dev/shm"):  # noqa: S108 - the container's
        yield f"{where}: nothing may be mounted over {path}"


def source(where: str, path: str, writable: bool, context: FieldContext) -> Reasons:
    """Check a host path: all its resolutions must be in a listed directory."""
    mounts = context.policy.mounts
    if "\n" in path or not path.startswith("/"):
        yield f"{where}: {shown(path)} is not an absolute path"
        return
    for way in sorted({path, _normalise(path)}):
        try:
            real, plain = context.files(way)
            write = {context.files(root)[0] for root in mounts.write if _is_reachable(root, context)}
            read = {context.files(root)[0] for root in mounts.read if _is_reachable(root, context)}
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            yield f"{where}: cannot resolve {shown(way)}: {why} (the proxy's user must reach it)"
            return
        if any(inside(real, sealed) for sealed in SEALED):
            yield f"{where}: {shown(way)} leads to {shown(real)}, which no container may see"
        elif not plain:
            yield f"{where}: {shown(way)} is a socket, device or pipe"
        elif real not in write and writable:
            yield f"{where}: {shown(way)} leads to {shown(real)}, which is not in the policy's mounts.write"
        elif real not in write and not any(inside(real, root) for root in read):
            yield f"{where}: {shown(way)} leads to {shown(real)}, outside the policy's mounts.read"


def _is_reachable(root: str, context: FieldContext) -> bool:
    try:
        context.files(root)
    except OSError:
        return False
    return True


def _normalise(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def mount(where: str, value: object, context: FieldContext) -> Reasons:
    """Check an element of HostConfig.Mounts."""
    yield from fields(_MOUNT)(where, value, context)
    if not isinstance(value, dict):
        return
    origin, kind = value.get("Source"), value.get("Type")
    match kind:
        case "bind":
            read_only = value.get("ReadOnly") is True
            yield from source(f"{where}.Source", str(origin or ""), not read_only, context)
        case "volume":
            if origin and not (isinstance(origin, str) and VOLUME.fullmatch(origin)):
                yield f"{where}.Source: {shown(origin)} is not the name of a volume"
        case "tmpfs":
            if origin:
                yield f"{where}.Source: a tmpfs has none"
        case _:
            yield f"{where}.Type: {shown(kind)} is not one of bind, volume, tmpfs"


_BIND_OPTIONS = fields(
    {
        "Propagation": one_of("", *_PRIVATE),
        "NonRecursive": flag,
        "CreateMountpoint": nothing,
        "ReadOnlyNonRecursive": nothing,
        "ReadOnlyForceRecursive": flag,
    }
)
_VOLUME_OPTIONS = fields(
    {
        "NoCopy": flag,
        "Labels": values(text),
        "Subpath": nothing,
        # `local` with o=bind,device=/ is a bind by another name.
        "DriverConfig": fields({"Name": one_of("", "local"), "Options": nothing}),
    }
)
_MOUNT = {
    "Type": text,
    "Source": text,
    "Target": target,
    "ReadOnly": flag,
    "Consistency": one_of("", "default", "consistent", "cached", "delegated"),
    "BindOptions": _BIND_OPTIONS,
    "VolumeOptions": _VOLUME_OPTIONS,
    "TmpfsOptions": fields({"SizeBytes": number, "Mode": number, "Options": nothing}),
    "ClusterOptions": nothing,
    "ImageOptions": nothing,
}
binds = each(bind)
mounts = each(mount)


def tmpfs(where: str, value: object, context: FieldContext) -> Reasons:
    if not isinstance(value, dict):
        yield f"{where}: must be an object"
        return
    for path, options in value.items():
        yield from target(where, path, context)
        for option in str(options or "").split(","):
            if option and not _TMPFS.fullmatch(option):
                yield f"{where}: the option {shown(option)} is not allowed"


def volumes_named(host_config: Json) -> Iterator[str]:
    """Yield the named volumes of an accepted body."""
    for line in host_config.get("Binds") or []:
        if not line.startswith("/"):
            yield line.split(":")[0]
    for item in host_config.get("Mounts") or []:
        if item.get("Type") == "volume" and item.get("Source"):
            yield item["Source"]
