"""Whether a pod's state directory outlives the pod: /proc/self/mountinfo names the file system below it."""

import os
import re
from pathlib import Path, PurePosixPath

_MOUNTS = Path("/proc/self/mountinfo")  # proc_pid_mountinfo(5)
_OWN = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})  # of the container runtime
_MEMORY = frozenset({"tmpfs", "ramfs"})
_EMPTY_DIR = "kubernetes.io~empty-dir"  # in the path that the kubelet gives to such a volume
_ESCAPE = re.compile(r"\\([0-7]{3})")


def describe_volatile(state_dir: Path) -> str:
    """Why the directory ends with this pod; "" if it does not, or outside a pod.

    Not recognised: a sandbox such as gVisor, which shows other mounts, and a claim that ends with its pod.
    """
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return ""
    kind = find_volatile(state_dir.resolve(), _MOUNTS.read_text())
    if not kind:
        return ""
    return (
        f"[agent] state_dir: {state_dir} is in {kind}, which ends with the pod, and so would the journal: "
        'mount a PersistentVolumeClaim there, or use mode = "advise"'
    )


def find_volatile(place: Path, mountinfo: str) -> str:
    """Name the kind of the volatile file system that holds `place`; "" if none does."""
    mounts = [_parse(line) for line in mountinfo.splitlines()]
    holding = [mount for mount in mounts if place.is_relative_to(mount[0])]
    if not holding:
        return ""
    _, root, kind = max(
        reversed(holding), key=lambda mount: len(mount[0].parts)
    )  # the last one covers the others
    if _EMPTY_DIR in root:
        return "an emptyDir volume"
    if kind in _OWN:
        return "the container's own file system"
    return "memory" if kind in _MEMORY else ""


def _parse(line: str) -> tuple[PurePosixPath, str, str]:
    """Return the mount point, the folder of the file system that is mounted there, and the type."""
    words, _, file_system = line.partition(" - ")
    root, point = words.split(" ")[3:5]
    return PurePosixPath(_unescape(point)), _unescape(root), file_system.split(" ")[0]


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
