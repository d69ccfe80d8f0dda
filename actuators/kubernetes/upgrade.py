"""Put a workload's container on another image, or give it other variables; pin the image before."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flettner.actuators.kubernetes.image_registry import (
    MissingImageError,
    find_cuda,
    find_digest,
    split_image,
)
from flettner.actuators.kubernetes.pods import Pod
from flettner.actuators.kubernetes.registry_login import Login, find_login
from flettner.actuators.kubernetes.workload import Workload
from flettner.actuators.vllm.release_change import (
    ReleaseChange,
    describe_versions,
    find_release_change,
)
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.upgrade import COMMAND, IMAGE, env_in
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import Reader
from flettner.clients.kubernetes.documents import Json, has_labels
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import ENV, Knob, Setting, Value

_RELEASE = re.compile(r"\Av?(\d+\.\d+\.\d+)(?:[^\w.].*)?")
"""A tag of vllm/vllm-openai: v0.33.0, v0.11.0-x86_64."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedUpgrade:
    """`resolved`: present and new value of each, with the flags that the new release writes otherwise."""

    setting: Setting
    start: Setting  # with the image by its digest, if that is known
    resolved: Mapping[Knob, tuple[Value, Value]]
    notes: tuple[str, ...] = ()  # for the operator who approves
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # as in PreflightResult


async def resolve_upgrade(
    reader: Reader, workload: Workload, start: Setting, setting: Setting, version: str, gpu: str = ""
) -> ResolvedUpgrade:
    """`version`: of vLLM that runs now; `gpu`: the model of its GPUs; empty if unknown.

    Raises ActError, or FlagError with the fix.
    """
    if COMMAND in start:
        raise FlagError("command= is of processes: a workload is upgraded by image=")
    notes = _describe_references(workload, start)
    asked = start.get(IMAGE)
    flags = ReleaseChange()
    cuda = ("", "")
    if isinstance(asked, str):
        pinned, note, cuda = await _pin(reader, asked, workload)
        start = {**start, IMAGE: pinned}
        env = upgraded(workload, start).variables
        flags, versions = await asyncio.to_thread(_compare_releases, setting, env, version, asked, gpu)
        if flags.problem:
            raise FlagError(flags.problem)
        start = {**start, **flags.start}
        if others := list(_containers_with(workload, workload.image)):
            notes += (f"the containers {', '.join(others)} of the pod keep the image {workload.image}",)
        notes += (note, versions, *flags.notes)
    upgraded(workload, start)
    before = present(workload, start)
    resolved = {name: (before[name], value) for name, value in start.items()}
    return ResolvedUpgrade(
        setting=flags.apply(setting) if flags.flags else setting,
        start=start,
        resolved={**resolved, **flags.flags},
        notes=tuple(filter(None, notes)),
        versions=describe_versions(vLLM=flags.versions, CUDA=cuda),
    )


def upgraded(workload: Workload, start: Setting) -> Workload:
    """Return the workload with the image and the variables of a start. Idempotent. Raises FlagError.

    An image that is written with a digest besides the wanted tag stays.
    """
    if not start:
        return workload
    container = dict(workload.container_document)
    image = start.get(IMAGE)
    if isinstance(image, str) and image != workload.image.partition("@")[0]:
        container["image"] = image
    if variables := env_in(start):
        container["env"] = _with_variables(container.get("env") or (), variables)
    after = workload.with_container(container)
    if after.problem and not workload.problem:
        raise FlagError(f"with the image {image}: {after.problem}: write `command` into the manifest first")
    return after


def change_container(workload: Workload, setting: Mapping[str, Value], start: Setting) -> Json:
    """Return the fields of the vLLM container with this full setting and start. Raises FlagError."""
    after = upgraded(workload, start)
    before, container = workload.container_document, after.container_document
    changed = {key: container[key] for key in ("image", "env") if container.get(key) != before.get(key)}
    return {**changed, **after.with_setting(setting)}


def present(workload: Workload, start: Setting) -> Setting:
    """Return the image and the variables of these names as the manifest has them."""
    variables = workload.variables
    return {
        name: workload.image if name == IMAGE else variables.get(name.removeprefix(ENV)) for name in start
    }


def pin_by_pods(image: str, pods: Iterable[Pod]) -> str:
    """Return the image by the digest that these pods run; as it is, unless all tell the same one."""
    digests = {str(pod.own.get("imageID", "")).rpartition("@")[2] for pod in pods}
    if "@" in image or len(digests) != 1 or _DIGEST.fullmatch(digest := digests.pop()) is None:
        return image
    return f"{image}@{digest}"


def describe_names(start: Setting) -> str:
    """Return the annotation of what upgrades have set."""
    return " ".join(sorted(start))


async def _pin(reader: Reader, image: str, workload: Workload) -> tuple[str, str, tuple[str, str]]:
    """Return the image by its digest, a note on where that is from, and the present and the new CUDA.

    The image has its tag if nobody tells its digest. Raises ActError.
    """
    unknown = ("", "")
    if "@" in image:
        return image, "", unknown
    documents = await reader.find(kubernetes.POD)
    login = await _find_login(reader, workload, image, documents)
    try:
        pinned = f"{image}@{await find_digest(image, login.basic if login else '')}"
    except MissingImageError as error:
        why = f"{error.why}, and nothing was started; if it is hidden there, name it by its digest"
        raise ActError(why) from error
    except ActError as error:
        pods = [Pod.parse(document, _name_of_image(document, image)) for document in documents]
        running = [pod for pod in pods if pod.active and pod.own]
        pinned, why = pin_by_pods(image, running), error.why
        if pinned != image:
            return pinned, f"{image} is {pinned}, as pods of the namespace run it: {why}", unknown
        note = f"the digest of {image} is not known before green runs: {why}; a promotion pins what green ran"
        return image, note, unknown
    note = f"{image} is {pinned}" + (f" (with the login of {login.source})" if login else "")
    present = await _find_login(reader, workload, workload.image, documents)
    cudas = await asyncio.gather(_find_cuda(workload.image, present), _find_cuda(pinned, login))
    return pinned, note, (cudas[0], cudas[1])


async def _find_login(reader: Reader, workload: Workload, image: str, pods: Iterable[Json]) -> Login | None:
    own = [document["spec"] for document in pods if has_labels(document, workload.selector)]
    return await find_login(reader, split_image(image)[0], (workload.template["spec"], *own))


async def _find_cuda(image: str, login: Login | None) -> str:
    return await find_cuda(image, login.basic if login else "")


def _name_of_image(pod: Json, image: str) -> str:
    """Return the name of the pod's container with this image; empty: none has it."""
    containers = pod["spec"]["containers"]
    return next((str(each["name"]) for each in containers if each.get("image") == image), "")


def _compare_releases(
    setting: Setting, env: Mapping[str, str], version: str, image: str, gpu: str
) -> tuple[ReleaseChange, str]:
    """Return the change of the flags, and both versions: the new one is that in the image's tag."""
    match = _RELEASE.fullmatch(image.partition("@")[0].rpartition("/")[2].partition(":")[2])
    if not version or match is None:
        old = version or "of an unknown version"
        said = (
            f"vLLM {old} → unknown, as the tag names no release"
            if match is None
            else f"vLLM {old} → {match[1]}"
        )
        return ReleaseChange(), f"{said}: the flags were not compared (`flettner lint --upgrade-to RELEASE`)"
    return find_release_change(
        setting, env, version, match[1], gpu
    ), f"vLLM {version} → {match[1]}, by the tag"


def _containers_with(workload: Workload, image: str) -> Iterable[str]:
    pod, own = workload.template["spec"], workload.container_document
    for container in (*(pod.get("initContainers") or ()), *pod["containers"]):
        if container.get("image") == image and container["name"] != own["name"]:
            yield str(container["name"])


def _describe_references(workload: Workload, start: Setting) -> tuple[str, ...]:
    references = workload.references
    notes = [
        f"{name} had its value from {', '.join(references[name])}: the change writes it into the manifest"
        for name in env_in(start)
        if name in references
    ]
    taken = [
        name for name, value in env_in(start).items() if value is None and name not in workload.variables
    ]
    if taken and workload.container_document.get("envFrom"):
        notes.append(f"{', '.join(taken)}: what envFrom gives to the container stays")
    return tuple(notes)


def _with_variables(given: Iterable[Json], variables: Mapping[str, Value]) -> list[Json]:
    """Return `env` with these; an entry keeps its place, as later ones may refer to it."""
    env: list[Json] = []
    missing = dict(variables)
    for variable in given:
        name = variable["name"]
        if name not in variables:
            env.append(variable)
        elif (value := missing.pop(name, None)) is not None:
            env.append({"name": name, "value": str(value)})
    return [
        *env,
        *({"name": name, "value": str(value)} for name, value in missing.items() if value is not None),
    ]
