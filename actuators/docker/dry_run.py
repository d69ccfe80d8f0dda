"""Check a candidate command with the vLLM of the image itself, in a short-lived container.

The container has the same mounts, read-only, and the same GPUs, of which vLLM only reads the names. It has no
network, no port and little of the host. It ends within minutes and is removed.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from flettner.actuators.docker import arg_check
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.docker.registry import container_name
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.clients.docker.labels import TARGET
from flettner.redaction import mask

Json = dict[str, Any]

CHECK = "flettner.check"  # the label of these containers, which are no servers
_DEADLINE_S = 600.0  # a check takes half a minute of CPU, shared with busy servers
_GIB = 1024**3
_PYTHONS = ("python3", "python")
_MODULES = frozenset({"vllm", "vllm.entrypoints.cli.main"})
_NO_PROGRAM = ("executable file not found", "no such file or directory")
_KEPT = ("CapAdd", "CapDrop", "GroupAdd", "SecurityOpt", "Tmpfs", "UsernsMode")
_KEPT_FOR_GPUS = ("DeviceRequests", "Devices", "DeviceCgroupRules", "Runtime")
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_MODULES_CACHE": "/tmp/hf_modules",  # noqa: S108 - of the container; the mounted cache is read-only
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunOutput:
    """The verdict of vLLM on one command. `kind` of an error: "usage", "value", "other"."""

    ok: bool
    kind: str = ""
    error: str = ""
    resolved: Mapping[str, Any] = field(default_factory=dict)  # with defaults for this model and GPU
    hash: str = ""  # commands of equal hash share their compiled graphs
    compiles: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunResult:
    """An answer for each command, or the reason `why` there is none."""

    answers: tuple[DryRunOutput, ...] = ()
    version: str = ""
    cache: str = ""  # folder in the container with the compiled graphs
    why: str = ""


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
        "Env": [f"{name}={value}" for name, value in {**blue.env, **_OFFLINE}.items()],
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


def script() -> str:
    """Return the source of the script that runs in the image."""
    return Path(arg_check.__file__).read_text(encoding="utf-8")


def pythons_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the programs of the image that may be the Python of its vLLM, the likeliest first."""
    likely = []
    for word in command:
        program, folder = PurePosixPath(word).name, str(PurePosixPath(word).parent)
        if program.startswith("python"):
            likely.append(word)
            break
        if program == "vllm":
            likely += [f"{folder}/{python}" for python in _PYTHONS if word.startswith("/")]
            break
    return tuple(dict.fromkeys((*likely, *_PYTHONS)))


def flags_of(command: Sequence[str]) -> list[str]:
    """Return the words after the program: `vllm serve`, `python -m MODULE`, `python FILE`, or a script."""
    for at, word in enumerate(command):
        program = PurePosixPath(word).name
        if program == "vllm":
            return _without_serve(command[at + 1 :])
        if program.startswith("python"):
            return _after_python(command, at + 1)
    return _without_serve(command[1:])


def _after_python(command: Sequence[str], at: int) -> list[str]:
    while at < len(command):
        if command[at] == "-m":
            rest = list(command[at + 2 :])
            return _without_serve(rest) if command[at + 1] in _MODULES else rest
        if not command[at].startswith("-"):
            return _without_serve(command[at + 1 :])
        at += 2 if command[at] in {"-W", "-X"} else 1
    return []


def _without_serve(words: Sequence[str]) -> list[str]:
    return list(words[1:] if words[:1] in (["serve"], ("serve",)) else words)


def parse_result(code: int, output: str) -> DryRunResult:
    """Find the result of the script in its output, which vLLM writes to, too."""
    lines = [line for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith(arg_check.MARK):
            with suppress(ValueError, TypeError, KeyError):
                return _checked(json.loads(line.removeprefix(arg_check.MARK)))
    last = f": {mask(lines[-1])[:300]}" if lines else ""
    return DryRunResult(why=f"vLLM's own check ended with code {code} and no answer{last}")


def _checked(result: Json) -> DryRunResult:
    if result["vllm"] is None:
        return DryRunResult(why="its image has no vLLM to check with")
    answers = tuple(
        DryRunOutput(
            ok=bool(answer["ok"]),
            kind=str(answer.get("kind", "")),
            error=mask(str(answer.get("error", ""))),
            resolved=dict(answer.get("resolved") or {}),
            hash=str(answer.get("hash", "")),
            compiles=bool(answer.get("compiles", True)),
        )
        for answer in result["answers"]
    )
    return DryRunResult(answers=answers, version=str(result["vllm"]), cache=str(result["cache"]))
