"""Put a container on another image or other GPUs, or give it other variables: pull, pin and rebase.

What inspect shows of a container is a mixture of its image and of what it was created with. The rebased
container keeps the latter, and has the new image's own entry point, variables and labels for the former.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container, Json, is_for_gpus
from flettner.actuators.vllm.release_change import describe_versions
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.upgrade import COMMAND, IMAGE, env_in
from flettner.vllm_facts.values import ENV, GPUS, Knob, Setting, Value

_OF_IMAGE = ("Cmd", "Entrypoint", "Healthcheck", "Shell", "StopSignal", "User", "WorkingDir")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_TABLES = ("ExposedPorts", "Labels", "Volumes")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedStart:
    """A start as it can be repeated: `resolved` has the image by its digest, or by its id without one."""

    start: Setting = field(default_factory=dict)
    resolved: Mapping[Knob, tuple[Value, Value]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # for the operator who approves
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # as in PreflightResult


async def pin(
    client: DockerClient,
    blue: Container,
    start: Setting,
    *,
    acts: bool,
    report: Callable[[str], None] = lambda _: None,
) -> PinnedStart:
    """Pull the image and name it by its digest. Raises ActError with the fix; nothing was started then.

    `report` is called with a sentence on the progress of the pull.
    """
    if COMMAND in start:
        raise ActError("command= is of processes: a container is upgraded by image=")
    env = {f"{ENV}{name}": (blue.env.get(name), value) for name, value in env_in(start).items()}
    asked = start.get(IMAGE)
    if not isinstance(asked, str):
        return PinnedStart(start=start, resolved=env)
    if not acts:
        raise ActError('advise mode pulls no image: set [agent] mode = "approve", and restart flettner')
    image, note = await _pulled(client, asked, report)
    pinned = _pinned_name(asked, image)
    old = await client.image(blue.image)
    notes = [f"{asked} is {pinned}", *([note] if note else [])]
    cuda = describe_versions(CUDA=(_cuda(old) if old is not None else "", _cuda(image)))
    present = _pinned_name(blue.image_tag, old) if old is not None else blue.image_tag
    if old is not None and old["Id"] == image["Id"]:
        pinned = present
    return PinnedStart(
        start={**start, IMAGE: pinned},
        resolved={IMAGE: (present, pinned), **env},
        notes=tuple(notes),
        versions=cuda,
    )


async def upgraded(client: DockerClient, container: Container, start: Setting) -> Container:
    """Return the container as an upgrade makes it, with all that belongs to its image from the new one.

    Raises ActError if an image is gone.
    """
    config, image_id = deepcopy(container.document["Config"]), container.image
    name = start.get(IMAGE)
    if isinstance(name, str) and name not in {container.image_tag, container.image}:
        new = await client.image(name)
        if new is None:
            new, _ = await _pulled(client, name)
        if new["Id"] != container.image:
            old = await client.image(container.image)
            if old is None:
                raise ActError(
                    f"the image {container.image_tag} of {container.name} is not on this host any more, so "
                    "what the container has from it is not known: pull it"
                )
            config, image_id = rebase(config, old.get("Config") or {}, new.get("Config") or {}), new["Id"]
        config["Image"] = name
    config["Env"] = _with_variables(config.get("Env") or [], env_in(start))
    document = {**container.document, "Config": config, "Image": image_id}
    if gpus := start.get(GPUS):
        document = move(document, str(gpus).split(","))
    parsed = await asyncio.to_thread(Container.parse, document)  # it may read a mounted file
    return replace(container.seen_as(parsed), gone=container.gone)


def why_not_moved(container: Container) -> str:
    """Why a container like this cannot get other GPUs, with the fix; empty: it can."""
    host = container.document["HostConfig"]
    if not any(map(is_for_gpus, host.get("DeviceRequests") or ())) and "nvidia" not in str(
        host.get("Runtime")
    ):
        return f"{container.name} has its GPUs as device files, which name them: start it with --gpus"
    return ""


def move(document: Json, gpus: Sequence[str]) -> Json:
    """Return what inspect shows of a container on these GPUs of the host, in this order."""
    config, host = document["Config"], dict(document["HostConfig"])
    lines = [line for line in config.get("Env") or [] if line.partition("=")[0] not in _VISIBLE]
    requests = [request for request in host.get("DeviceRequests") or () if is_for_gpus(request)]
    if requests:
        named = [str(gpu) for request in requests for gpu in request.get("DeviceIDs") or ()]
        prefix = next((f"{name.rpartition('=')[0]}=" for name in named if "=" in name), "")  # nvidia.com/gpu=
        others = [request for request in host["DeviceRequests"] if not is_for_gpus(request)]
        moved = {**requests[0], "Count": 0, "DeviceIDs": [f"{prefix}{gpu}" for gpu in gpus]}
        host["DeviceRequests"] = [*others, moved]
    else:
        lines.append(f"NVIDIA_VISIBLE_DEVICES={','.join(gpus)}")
    return {**document, "Config": {**config, "Env": lines}, "HostConfig": host}


def rebase(config: Json, old: Json, new: Json) -> Json:
    """Return Config of a container on another image. `old`, `new`: Config of the images."""
    rebased = {key: value for key, value in config.items() if key not in {*_OF_IMAGE, *_TABLES, "Env"}}
    for key in _OF_IMAGE:
        own, was = config.get(key), old.get(key)
        value = new.get(key) if (own or None) == (was or None) else own
        if value is not None:
            rebased[key] = value
    for key in _TABLES:
        was = old.get(key) or {}
        own_entries = {
            name: value for name, value in (config.get(key) or {}).items() if was.get(name) != value
        }
        rebased[key] = {**(new.get(key) or {}), **own_entries}
    of_image = set(old.get("Env") or ())
    own_lines = [line for line in config.get("Env") or () if line not in of_image]
    own_names = {line.partition("=")[0] for line in own_lines}
    inherited = [line for line in new.get("Env") or () if line.partition("=")[0] not in own_names]
    return {**rebased, "Env": [*inherited, *own_lines]}


def _with_variables(lines: list[str], env: Mapping[str, Value]) -> list[str]:
    kept = [line for line in lines if line.partition("=")[0] not in env]
    return [*kept, *(f"{name}={value}" for name, value in env.items() if value is not None)]


async def _pulled(
    client: DockerClient, name: str, report: Callable[[str], None] = lambda _: None
) -> tuple[Json, str]:
    """Return the image as its registry has it, else as this host has it, with a note. Raises ActError."""
    note = ""
    try:
        await client.pull(name, report)
    except ActError as error:
        if await client.image(name) is None:
            raise ActError(f"{name} could not be pulled, and nothing was started: {error.why}") from error
        note = f"the image of this host is used, as it could not be pulled: {error.why}"
    image = await client.image(name)
    if image is None:
        raise ActError(f"{name} was pulled and is gone: something removes images on this host")
    return image, note


def _pinned_name(name: str, image: Json) -> str:
    """Return REPOSITORY:TAG@DIGEST, or the image's id if it is of no registry."""
    tagged = name.partition("@")[0]
    head, _, last = tagged.rpartition("/")
    repository = f"{head}/{last.partition(':')[0]}" if head else last.partition(":")[0]
    for digest in image.get("RepoDigests") or ():
        if str(digest).partition("@")[0] == repository:
            return f"{tagged}@{str(digest).partition('@')[2]}"
    return str(image["Id"])


def _cuda(image: Json) -> str:
    lines: list[Any] = (image.get("Config") or {}).get("Env") or []
    return next((str(line).partition("=")[2] for line in lines if str(line).startswith("CUDA_VERSION=")), "")
