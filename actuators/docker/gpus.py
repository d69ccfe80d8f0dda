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
    """`ids`: indices or UUIDs, in the order of the container. `unknown`: why they cannot be identified."""

    ids: tuple[str, ...] = ()
    all: bool = False  # every GPU of the host
    unknown: str = ""

    @property
    def any(self) -> bool:
        return bool(self.ids or self.all or self.unknown)


def parse_gpus(host: Json, env: Mapping[str, str]) -> Gpus:
    """From `--gpus`, the nvidia runtime, or device files, filtered by CUDA_VISIBLE_DEVICES.

    `host`: HostConfig of the container.
    """
    asked = [one for one in host.get("DeviceRequests") or () if _for_gpus(one)]
    if asked:
        gpus = _from_requests(asked)
    elif "nvidia" in str(host.get("Runtime") or ""):
        gpus = _from_runtime(env.get("NVIDIA_VISIBLE_DEVICES", ""))
    else:
        gpus = _from_devices([str(one.get("PathOnHost") or "") for one in host.get("Devices") or ()])
    return _filter_visible(gpus, env["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in env else gpus


def _for_gpus(request: Json) -> bool:
    capabilities = {name for names in request.get("Capabilities") or () for name in names}
    return "gpu" in capabilities or request.get("Driver") in {"nvidia", "cdi"}


def _from_requests(requests: Sequence[Json]) -> Gpus:
    found: list[str] = []
    for request in requests:
        ids = [str(one).rpartition("=")[2] for one in request.get("DeviceIDs") or ()]  # nvidia.com/gpu=0
        count = int(request.get("Count") or 0)
        if count < 0 or _ALL in ids:
            return Gpus(all=True)
        found += ids or map(str, range(count))  # `--gpus 2` gives the first two
    return _parse_ids(found)


def _from_runtime(visible: str) -> Gpus:
    if visible == _ALL:
        return Gpus(all=True)
    return Gpus() if visible in _NONE else _parse_ids(visible.split(","))


def _from_devices(paths: Sequence[str]) -> Gpus:
    other = [path for path in paths if path.startswith(_OTHERS)]
    if other:
        return Gpus(unknown=f"{other[0]} is an unknown kind of device")
    numbers = [path.removeprefix("/dev/nvidia") for path in paths if path.startswith("/dev/nvidia")]
    return Gpus(ids=tuple(number for number in numbers if number.isdecimal()))


def _parse_ids(ids: Sequence[str]) -> Gpus:
    names = tuple(dict.fromkeys(one.strip() for one in ids if one.strip()))
    sliced = [one for one in names if one.startswith("MIG-") or ":" in one]
    return Gpus(ids=names, unknown=f"{sliced[0]} is a slice (MIG)" if sliced else "")


def _filter_visible(gpus: Gpus, visible: str) -> Gpus:
    """CUDA_VISIBLE_DEVICES counts within the GPUs of the container."""
    if visible.strip() in _NO_CUDA or not gpus.any:
        return Gpus()
    names = [one.strip() for one in visible.split(",")]
    if gpus.all or gpus.unknown:
        visible_ids = _parse_ids(names)
        return replace(visible_ids, unknown=visible_ids.unknown or gpus.unknown)
    kept = []
    for name in names:
        if name.isdecimal() and int(name) >= len(gpus.ids):
            break  # CUDA ignores everything after a missing index
        kept.append(gpus.ids[int(name)] if name.isdecimal() else name)
    return _parse_ids(kept)
