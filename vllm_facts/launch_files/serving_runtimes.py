"""KServe's InferenceServices with the ServingRuntime of the same file: the named one, or that of the format.

KServe appends the arguments of the service to those of the runtime's container, and its variables and
resources replace the runtime's (pkg/controller/v1beta1/inferenceservice/utils: MergeRuntimeContainers).
"""

from collections.abc import Sequence
from dataclasses import replace

from flettner.vllm_facts.launch_files.granted import granted_by_pod
from flettner.vllm_facts.launch_files.kubernetes import (
    MODELS,
    count_gpus,
    read_env,
    read_manifest,
    spread,
    stored_model,
)
from flettner.vllm_facts.launch_files.launch import Launch, Word
from flettner.vllm_facts.launch_files.yaml_nodes import Node, get, items, list_words, text_at

RUNTIMES, SERVICE = ("ServingRuntime", "ClusterServingRuntime"), "InferenceService"


def is_used(runtime: Node, services: Sequence[Node], runtimes: Sequence[Node]) -> bool:
    """Whether a service is read together with the runtime, one of those that it may choose from."""
    return any(_find_runtime(each, runtimes) is runtime for each in services)


def _find_runtime(service: Node, runtimes: Sequence[Node]) -> Node | None:
    """The only one that fits: of several, KServe takes that of the highest priority."""
    fitting = [each for each in runtimes if _fits(service, each)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(service: Node, runtime: Node) -> bool:
    """Whether the service names the runtime, or names none and the runtime offers itself for its format."""
    model, name = get(service, "spec", "predictor", "model"), text_at(runtime, "metadata", "name")
    if get(model, "command") is not None or not name:
        return False
    return text_at(model, "runtime") == name or (
        not text_at(model, "runtime") and _takes(runtime, text_at(model, "modelFormat", "name"))
    )


def _takes(runtime: Node, named: str) -> bool:
    if text_at(runtime, "spec", "disabled").lower() == "true":
        return False
    return any(
        named and text_at(each, "name") == named and text_at(each, "autoSelect").lower() == "true"
        for each in items(get(runtime, "spec", "supportedModelFormats"))
    )


def read_service(text: str, service: Node, runtimes: Sequence[Node]) -> list[Launch]:
    """The servers of a service with its runtime; empty if none of these is its runtime. Raises FlagError."""
    runtime, model = _find_runtime(service, runtimes), get(service, "spec", "predictor", "model")
    if runtime is None or model is None:
        return []
    env, remarks = read_env(text, model)
    own, gpus, start = list_words(get(model, "args")), count_gpus(model), model.start_mark.index
    name = f"{SERVICE}/{text_at(service, 'metadata', 'name')}"
    return [
        replace(
            spread(replace(launch, words=_fill(launch, model, own)), service),
            name=name,
            start=start,
            env={**launch.env, **env},
            gpus=gpus or launch.gpus,
            granted=granted_by_pod(model) or launch.granted,
            remarks=(*launch.remarks, *remarks),
        )
        for launch in read_manifest(text, runtime)
        if launch.words
    ]


def _fill(launch: Launch, model: Node, own: Sequence[Word]) -> tuple[Word, ...]:
    """The words of the runtime with the model that the service stores, and the service's arguments."""
    stored = stored_model(model)
    words = (
        replace(each, text=each.text.replace(MODELS, stored.text), form="none")
        if each.text.rpartition("=")[2] == MODELS
        else each
        for each in launch.words
    )
    return (*words, *_added(launch, own))


def _added(launch: Launch, own: Sequence[Word]) -> Sequence[Word]:
    """The arguments of the service, which a shell in the runtime would not hand on."""
    return () if any(word.form == "shell" for word in launch.words) else own
