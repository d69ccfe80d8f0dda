"""Inspect documents: one recorded from an engine, and minimal ones."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from flettner.actuators.docker.container import Json

RECORDED = Path(__file__).parent / "recorded" / "container_with_forty_options.json"

_ID = "5be036dfc64cb0822b383ebda1a86e17368bb08bd52060141013b8b968e86d0d"


def recorded() -> Json:
    """A container in two networks with almost every option of `docker run`."""
    document: Json = json.loads(RECORDED.read_text(encoding="utf-8"))
    return document


def container(
    *command: str,
    entrypoint: Sequence[str] = ("vllm", "serve"),
    config: Mapping[str, Any] | None = None,
    host: Mapping[str, Any] | None = None,
    mounts: Sequence[Json] = (),
    networks: Mapping[str, Json] | None = None,
) -> Json:
    """A plain `docker run -p 8000:8000` in the default network, with these fields over it."""
    return {
        "Id": _ID,
        "Name": "/vllm",
        "Image": "sha256:" + "5b" * 32,
        "Config": {
            "Hostname": _ID[:12],
            "Image": "vllm/vllm-openai:latest",
            "Entrypoint": list(entrypoint) or None,
            "Cmd": list(command) or None,
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/vllm-workspace",
            "Labels": {},
            **(config or {}),
        },
        "HostConfig": {
            "NetworkMode": "default",
            "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8000"}]},
            "RestartPolicy": {"Name": "always", "MaximumRetryCount": 0},
            "LogConfig": {"Type": "json-file", "Config": {}},
            "AutoRemove": False,
            **(host or {}),
        },
        "Mounts": list(mounts),
        "NetworkSettings": {
            "Networks": dict(networks or {"bridge": {"IPAMConfig": None, "NetworkID": "b0"}})
        },
    }


def started(body: Json, like: Json, name: str = "green") -> Json:
    """The compared fields of the inspect document of a container created from `body`."""
    document = deepcopy(like)
    document |= {"Id": "9" * 64, "Name": f"/{name}", "Image": body["Image"]}
    document["Config"] = {
        key: value for key, value in body.items() if key not in {"HostConfig", "NetworkingConfig"}
    }
    document["HostConfig"] = body["HostConfig"]
    return document
