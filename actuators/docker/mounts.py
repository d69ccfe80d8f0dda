"""What is mounted into a container: told by its real names, so that a like container gets the same."""

from typing import Any

from actuators.docker.command import Json


def anonymous_in(inspect: Json) -> dict[str, str]:
    """Volumes that nobody named (`-v /data`, the image's VOLUME): path inside -> the engine's name for it."""
    said = _said(inspect)
    return {
        mount["Destination"]: mount["Name"]
        for mount in inspect.get("Mounts") or ()
        if mount.get("Type") == "volume" and mount["Destination"] not in said
    }


def binds_of(inspect: Json) -> list[str]:
    """`Binds` of a like container: anonymous volumes by name, or it would get new, empty ones."""
    host = inspect["HostConfig"]
    by_mount = {one["Target"] for one in host.get("Mounts") or ()}
    read_only = {one["Destination"] for one in inspect.get("Mounts") or () if not one.get("RW", True)}
    found = [
        f"{name}:{path}" + (":ro" if path in read_only else "")
        for path, name in sorted(anonymous_in(inspect).items())
        if path not in by_mount
    ]
    return [*(host.get("Binds") or ()), *found]


def mounts_of(inspect: Json) -> list[Json]:
    """`Mounts` of a like container: `--mount type=volume,target=/data` by the volume's real name."""
    names = anonymous_in(inspect)
    return [
        {**one, "Source": names[one["Target"]]} if one["Target"] in names else dict(one)
        for one in inspect["HostConfig"].get("Mounts") or ()
    ]


def seen_in(inspect: Json) -> dict[str, Json]:
    """What is mounted, by path inside, in words that two like containers have in common."""
    return {
        mount["Destination"]: {
            "Type": mount.get("Type"),
            "Source": mount.get("Name") or mount.get("Source"),
            "RW": mount.get("RW", True),
            "Propagation": mount.get("Propagation", ""),
        }
        for mount in inspect.get("Mounts") or ()
    }


def _said(inspect: Json) -> set[str]:
    """Paths inside for which somebody said what is mounted there."""
    host = inspect["HostConfig"]
    binds = {bind.split(":")[1] for bind in host.get("Binds") or () if ":" in bind}
    return binds | {one["Target"] for one in host.get("Mounts") or () if one.get("Source")}


def options_of(inspect: Json) -> list[Any]:
    """`Mounts` with their options, in the order of the paths."""
    return sorted(mounts_of(inspect), key=lambda one: str(one["Target"]))
