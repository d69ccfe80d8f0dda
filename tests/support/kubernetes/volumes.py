"""The files of a container: those of this host, and the volumes of its pod as folders of this host."""

import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.support.kubernetes.api import Api, Json
from tests.support.kubernetes.container_spec import values_of

_TEMPORARY = Path(tempfile.gettempdir())  # holds the folders of pods


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
                items = {item["key"]: item["path"] for item in source.get("items", ())}
                for name, text in values.items():
                    if not items or name in items:
                        file = place / items.get(name, name)
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_text(text)


def root_folder(container: Json, folder: Path) -> Path:
    """The root of a container, in its mount namespace."""
    return folder / f"{container['name']}-scratch" / "root"


def making_root(container: Json, pod: Json, folder: Path) -> str:
    """Shell commands for a mount namespace of its own, at whose end the root is the container's.

    The root is an overlay over the one of this host, with its other mounts and the container's volumes. What
    the container writes elsewhere is gone with it.
    """
    root = root_folder(container, folder)
    scratch = root.parent
    lines = [
        "set -e",
        f"mkdir -p {scratch}",
        f"mount -t tmpfs tmpfs {scratch}",
        f"mkdir {scratch}/upper {scratch}/work {root}",
        f"mount -t overlay overlay -o lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work {root}",
        f"mkdir -p {root}{_TEMPORARY}",
        f"mount --bind {_TEMPORARY} {root}{_TEMPORARY}",  # without the mounts that these commands make in it
        *(f"mount --rbind {_quoted(place)} {_quoted(_inside(root, place))}" for place in _host_mounts()),
    ]
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
        host = volumes[mount["name"]].get("hostPath", {}).get("path")
        source = (Path(host) if host else folder / mount["name"]) / mount.get("subPath", "")
        target = _inside(root, Path(mount["mountPath"]))
        if source.is_file():
            lines += [f"mkdir -p {_quoted(target.parent)}", f"touch {_quoted(target)}"]
        else:
            lines += [f"mkdir -p {_quoted(target)}"]
        lines += [f"mount --rbind {_quoted(source)} {_quoted(target)}"]
    return "\n".join(lines)


def _host_mounts() -> Iterable[Path]:
    """The topmost mounts of this host, and the resolv.conf that `ip netns exec` has mounted."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = sorted({Path(line.split()[4]) for line in lines} | {Path("/etc/resolv.conf")})
    topmost: list[Path] = []
    for place in places:
        above = any(place.is_relative_to(other) for other in topmost)
        if place != Path("/") and not place.is_relative_to(_TEMPORARY) and not above and place.exists():
            topmost.append(place)
    return topmost


def _inside(root: Path, place: Path) -> Path:
    return root / place.relative_to("/")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
