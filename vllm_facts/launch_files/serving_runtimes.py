"""KServe's InferenceServices with the ServingRuntime of the same file that they name.

KServe appends the arguments of the service to those of the runtime's container, and its variables and
resources replace the runtime's (pkg/controller/v1beta1/inferenceservice/utils: MergeRuntimeContainers).
"""

from collections.abc import Sequence
from dataclasses import replace

from flettner.vllm_facts.launch_files.granted import granted_by_pod
from flettner.vllm_facts.launch_files.kubernetes import count_gpus, read_env, read_manifest, spread
from flettner.vllm_facts.launch_files.launch import Launch, Word
from flettner.vllm_facts.launch_files.yaml_nodes import Node, get, list_words, text_at

RUNTIMES, SERVICE = ("ServingRuntime", "ClusterServingRuntime"), "InferenceService"


def is_used(runtime: Node, services: Sequence[Node]) -> bool:
    """Whether a service is read together with the runtime."""
    return any(_names(each, runtime) for each in services)


def _names(service: Node, runtime: Node) -> bool:
    model = get(service, "spec", "predictor", "model")
    return text_at(model, "runtime") == text_at(runtime, "metadata", "name") != "" and (
        get(model, "command") is None
    )


def read_service(text: str, service: Node, runtimes: Sequence[Node]) -> list[Launch]:
    """The servers of a service with its runtime; empty if none of these is its runtime. Raises FlagError."""
    runtime = next((each for each in runtimes if _names(service, each)), None)
    model = get(service, "spec", "predictor", "model")
    if runtime is None or model is None:
        return []
    env, remarks = read_env(text, model)
    own, gpus, start = list_words(get(model, "args")), count_gpus(model), model.start_mark.index
    name = f"{SERVICE}/{text_at(service, 'metadata', 'name')}"
    return [
        replace(
            spread(replace(launch, words=(*launch.words, *_added(launch, own))), service),
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


def _added(launch: Launch, own: Sequence[Word]) -> Sequence[Word]:
    """The arguments of the service, which a shell in the runtime would not hand on."""
    return () if any(word.form == "shell" for word in launch.words) else own
