"""The GPUs of the host that a container sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Json = dict[str, Any]

_ALL = "all"
_NONE = frozenset({"", "none", "void"})  # of NVIDIA_VISIBLE_DEVICES
_NO_CUDA = frozenset({"", "-1", "NoDevFiles"})  # of CUDA_VISIBLE_DEVICES
_OTHERS = ("/dev/kfd", "/dev/dri", "/dev/habanalabs", "/dev/accel", "/dev/davinci")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """`ids` in the order the container sees them: an index, or a UUID. `odd`: why they cannot be told."""

    ids: tuple[str, ...] = ()
    all: bool = False  # every GPU of the host
    odd: str = ""

    @property
    def any(self) -> bool:
        return bool(self.ids or self.all or self.odd)


def parse_gpus(host: Json, env: Mapping[str, str]) -> Gpus:
    """From `--gpus`, the nvidia runtime, or device files, filtered by CUDA_VISIBLE_DEVICES.

    `host`: HostConfig of the container.
    """
    asked = [one for one in host.get("DeviceRequests") or () if _for_gpus(one)]
    if asked:
        gpus = _requested(asked)
    elif "nvidia" in str(host.get("Runtime") or ""):
        gpus = _listed(env.get("NVIDIA_VISIBLE_DEVICES", ""))
    else:
        gpus = _mapped([str(one.get("PathOnHost") or "") for one in host.get("Devices") or ()])
    return _left(gpus, env["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in env else gpus


def _for_gpus(request: Json) -> bool:
    capabilities = {name for names in request.get("Capabilities") or () for name in names}
    return "gpu" in capabilities or request.get("Driver") in {"nvidia", "cdi"}


def _requested(requests: Sequence[Json]) -> Gpus:
    found: list[str] = []
    for request in requests:
        ids = [str(one).rpartition("=")[2] for one in request.get("DeviceIDs") or ()]  # nvidia.com/gpu=0
        count = int(request.get("Count") or 0)
        if count < 0 or _ALL in ids:
            return Gpus(all=True)
        found += ids or map(str, range(count))  # a number of GPUs are always the first ones
    return _told(found)


def _listed(visible: str) -> Gpus:
    if visible == _ALL:
        return Gpus(all=True)
    return Gpus() if visible in _NONE else _told(visible.split(","))


def _mapped(paths: Sequence[str]) -> Gpus:
    other = [path for path in paths if path.startswith(_OTHERS)]
    if other:
        return Gpus(odd=f"{other[0]} is no device that is known here")
    numbers = [path.removeprefix("/dev/nvidia") for path in paths if path.startswith("/dev/nvidia")]
    return Gpus(ids=tuple(number for number in numbers if number.isdecimal()))


def _told(ids: Sequence[str]) -> Gpus:
    names = tuple(dict.fromkeys(one.strip() for one in ids if one.strip()))
    sliced = [one for one in names if one.startswith("MIG-") or ":" in one]
    return Gpus(ids=names, odd=f"{sliced[0]} is a slice (MIG)" if sliced else "")


def _left(gpus: Gpus, visible: str) -> Gpus:
    """CUDA_VISIBLE_DEVICES counts within what the container has."""
    if visible.strip() in _NO_CUDA or not gpus.any:
        return Gpus()
    names = [one.strip() for one in visible.split(",")]
    if gpus.all or gpus.odd:
        told = _told(names)
        return replace(told, odd=told.odd or gpus.odd)
    kept = []
    for name in names:
        if name.isdecimal() and int(name) >= len(gpus.ids):
            break  # CUDA ignores what stands after an index that is not there
        kept.append(gpus.ids[int(name)] if name.isdecimal() else name)
    return _told(kept)
