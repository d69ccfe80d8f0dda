"""Volumes of a pod: folders of this host, bound in the mount namespace of a container's process."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from tests.support.kubernetes.api import Api, Json
from tests.support.kubernetes.container_spec import values_of


async def provide(pod: Json, folder: Path, api: Api) -> None:
    """Write the volumes below `folder`; raises ConfigError. A claim is an empty folder, as an emptyDir is."""
    for volume in pod["spec"].get("volumes", ()):
        place = folder / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        for kind, key in (("configMap", "name"), ("secret", "secretName")):
            if kind in volume:
                source = volume[kind]
                values = await values_of(
                    api, pod["metadata"]["namespace"], kind, source[key], source.get("optional", False)
                )
                items = {one["key"]: one["path"] for one in source.get("items", ())}
                for name, text in values.items():
                    if not items or name in items:
                        file = place / items.get(name, name)
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_text(text)


def mounting(container: Json, pod: Json, folder: Path) -> str:
    """Shell commands that bind the container's volumes, for a mount namespace of its own.

    A mount point that this host lacks is made in an overlay of the folder above it, which cannot be the root.
    """
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    lines = []
    for number, mount in enumerate(container.get("volumeMounts", ())):
        host = volumes[mount["name"]].get("hostPath", {}).get("path")
        source = Path(host) if host else folder / mount["name"]
        source /= mount.get("subPath", "")
        target = Path(mount["mountPath"])
        above = next(parent for parent in target.parents if parent.exists())
        scratch = folder / f"mount-{container['name']}-{number}"
        lines += [f"[ -e {_quoted(target)} ] || {{ {_make(target, above, scratch, source)}; }}"]
        lines += [f"mount --bind {_quoted(source)} {_quoted(target)}"]
    return "\n".join(["set -e", *lines])


def _make(target: Path, above: Path, scratch: Path, source: Path) -> str:
    assert above != Path("/"), f"{target}: this host has no {target.parts[1]}; mount below /etc, /opt or /srv"
    upper, work = scratch / "upper", scratch / "work"
    layers = f"lowerdir={above},upperdir={upper},workdir={work}"
    made = [f"mkdir -p {_quoted(target.parent)}", f"touch {_quoted(target)}"]
    commands: Iterable[str] = (
        f"mkdir -p {_quoted(upper)} {_quoted(work)}",
        f"mount -t overlay overlay -o {layers} {_quoted(above)}",
        *(made if source.is_file() else [f"mkdir -p {_quoted(target)}"]),
    )
    return " && ".join(commands)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
