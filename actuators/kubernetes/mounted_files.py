"""The files that ConfigMaps mount into a container, by their absolute paths in it."""

from pathlib import PurePosixPath

from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import Reader
from flettner.clients.kubernetes.documents import Json


async def read_config_maps(reader: Reader, pod: Json, container: int) -> dict[str, str]:
    """Return the text of each file; `pod`: the spec of a pod. Raises ActError."""
    maps = {one["name"]: one["configMap"] for one in pod.get("volumes") or () if "configMap" in one}
    files: dict[str, str] = {}
    for mount in pod["containers"][container].get("volumeMounts") or ():
        source = maps.get(mount["name"])
        if source is None:
            continue
        document = await reader.get(kubernetes.CONFIG_MAP, source["name"]) or {}
        data = document.get("data") or {}
        chosen = {one["key"]: one["path"] for one in source.get("items") or ()} or {key: key for key in data}
        for key, path in chosen.items():
            if key in data and mount.get("subPath", path) == path:
                whole = (
                    PurePosixPath(mount["mountPath"])
                    if "subPath" in mount
                    else PurePosixPath(mount["mountPath"], path)
                )
                files[str(whole)] = data[key]
    return files
