"""Check a candidate command with the vLLM of the image itself, in a short-lived container.

The container has the same mounts, read-only, and the same GPUs, of which vLLM only reads the names. It has no
network, no port and little of the host. It ends within minutes and is removed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.docker.registry import container_name
from flettner.actuators.vllm.flag_check import (
    OFFLINE,
    DryRunResult,
    flags_of,
    parse_result,
    pythons_of,
    script,
)
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.clients.docker.labels import TARGET

Json = dict[str, Any]

CHECK = "flettner.check"  # the label of these containers, which are no servers
_DEADLINE_S = 600.0  # a check takes half a minute of CPU, shared with busy servers
_GIB = 1024**3
_NO_PROGRAM = ("executable file not found", "no such file or directory")
_KEPT = ("CapAdd", "CapDrop", "GroupAdd", "SecurityOpt", "Tmpfs", "UsernsMode")
_KEPT_FOR_GPUS = ("DeviceRequests", "Devices", "DeviceCgroupRules", "Runtime")


async def dry_run(
    client: DockerClient, site: Site, blue: Container, commands: Sequence[Sequence[str]]
) -> DryRunResult:
    """Check these full commands (program and flags). Raises ActError if the container cannot be run."""
    name = container_name(site, "check")
    labels = {TARGET: site.target, CHECK: site.digest}  # not SITE: those are servers
    pythons = pythons_of(commands[0])
    for python in pythons:
        await client.remove(name, volumes=True)  # left by a daemon that was killed
        try:
            body = create_body(blue, python, [flags_of(words) for words in commands], labels)
            code, output = await client.run_once(body, name, _DEADLINE_S)
        except ActError as error:
            if any(why in error.why for why in _NO_PROGRAM):
                continue
            raise
        return parse_result(code, output)
    return DryRunResult(why=f"its image has none of {', '.join(pythons)} to run vLLM with")


async def remove_leftovers(client: DockerClient, site: Site) -> None:
    """Remove the container of a dry run that a killed daemon left. Raises ActError."""
    await client.remove(container_name(site, "check"), volumes=True)


def create_body(
    blue: Container, python: str, lines: Sequence[Sequence[str]], labels: Mapping[str, str]
) -> Json:
    """Return the create body: only image, environment, user, mounts and devices are those of `blue`."""
    config, host = blue.document["Config"], blue.document["HostConfig"]
    copied_keys = [*_KEPT, *(_KEPT_FOR_GPUS if blue.gpus.any else ())]
    return {
        "Image": blue.image,
        "Entrypoint": [python],
        "Cmd": ["-c", script(), json.dumps([list(words) for words in lines])],
        "Env": [f"{name}={value}" for name, value in {**blue.env, **OFFLINE}.items()],
        "User": config.get("User") or "",
        "WorkingDir": config.get("WorkingDir") or "",
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": True,
        "HostConfig": {
            **{name: host[name] for name in copied_keys if host.get(name)},
            "Mounts": mounts_of(blue),
            "NetworkMode": "none",
            "Memory": 4 * _GIB,
            "MemorySwap": 4 * _GIB,
            "CpuShares": 256,  # a quarter of the share of a server
            "OomScoreAdj": 1000,  # killed before any server
            "PidsLimit": 4096,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {}},  # the output must be readable
        },
    }


def mounts_of(blue: Container) -> list[Json]:
    """Return all its mounts, read-only, without sockets: a socket gives access to a service."""
    mounts = []
    for mount in blue.mounts:
        source = mount.name if mount.type == "volume" else mount.source
        if mount.type in {"bind", "volume"} and source and not source.endswith(".sock"):
            mounts.append(
                {"Type": mount.type, "Source": source, "Target": mount.destination, "ReadOnly": True}
            )
    return mounts
