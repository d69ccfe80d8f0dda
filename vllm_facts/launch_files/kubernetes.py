"""Kubernetes manifests: each container that starts vLLM, in whatever kind of resource it stands.

Deployments, StatefulSets, Jobs, LeaderWorkerSets and KServe's InferenceServices all hold containers with
`image`, `command`, `args`, `env` and `resources`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from flettner.vllm_facts.launch_files.containers import command_words, read_container
from flettner.vllm_facts.launch_files.granted import granted_by_pod
from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word, line_of
from flettner.vllm_facts.launch_files.mounted_scripts import (
    ScriptVolumes,
    find_script_volumes,
    insert_scripts,
    mount_scripts,
)
from flettner.vllm_facts.launch_files.named_gpus import find_gpu_of_pods
from flettner.vllm_facts.launch_files.surroundings import DEVICES, describe_pod
from flettner.vllm_facts.launch_files.yaml_nodes import (
    Node,
    entries,
    get,
    items,
    list_words,
    text_at,
    word_of,
)

_WORKLOADS = frozenset({"Pod", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job"})
"""Resources whose controllers add no volume of their own; those of others, such as KServe's, do."""
_RUNTIME_FLAGS = frozenset(
    {
        *("model_name", "model_dir", "model_revision", "tokenizer_revision", "backend", "task", "max_length"),
        *("disable_lower_case", "disable_special_tokens", "add_special_tokens", "tensor_input_names"),
        *("return_token_type_ids", "return_probabilities", "return_raw_logits", "http_port", "grpc_port"),
    }
)
"""Flags of KServe's runtime for Hugging Face (python/huggingfaceserver/huggingfaceserver/__main__.py)."""
MODELS = "/mnt/models"  # the folder into which KServe puts a model
_GROUP = "LWS_GROUP_SIZE"  # set by the controller of LeaderWorkerSet
_HOOKS = frozenset({"lifecycle", "startupProbe", "livenessProbe", "readinessProbe"})
"""What runs commands of its own in a container."""
_GENERATES = frozenset({"", "text_generation", "text2text_generation"})
_SIZES = {
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
}


def read_manifest(
    text: str, document: Node, services: Sequence[Node] = (), config_maps: Sequence[Node] = ()
) -> list[Launch]:
    """The servers of one resource, or of a Helm chart's values. Raises FlagError.

    `services`, `config_maps`: those in its namespace, as far as the file has them.
    """
    volumes = find_script_volumes(document, config_maps) if config_maps else {}
    resource = f"{text_at(document, 'kind') or 'values'}/{text_at(document, 'metadata', 'name')}".rstrip("/")
    launches = []
    size = text_at(document, "spec", "leaderWorkerTemplate", "size")
    injected = {_GROUP: Variable(value=size)} if size else {}
    known, gpu = text_at(document, "kind") in _WORKLOADS, find_gpu_of_pods(document)
    plain = known and not _shares_memory(document)
    for container in _containers(document):
        name = text_at(container, "name")
        label = f"{resource}: {name}" if name else resource
        little = plain and not _mounts_shared_memory(container)
        launches += [
            replace(
                spread(launch, document) if launch.words else launch,
                name=label,
                gpu=gpu,
                little_shared_memory="Kubernetes" if little else None,
                container=describe_pod(document, container, services) if known else None,
            )
            for launch in _read_container(text, container, volumes, injected)
        ]
    return [replace(launch, hosts=int(size)) for launch in launches] if size.isdecimal() else launches


def _shares_memory(node: Node) -> bool:
    """Whether the pods use the memory of their host."""
    pairs = list(entries(node))
    if any(name == "hostIPC" and str(value.value).lower() == "true" for name, _, value in pairs):
        return True
    return any(_shares_memory(value) for name, _, value in pairs if name in {"spec", "template"})


def _mounts_shared_memory(container: Node) -> bool:
    return any(
        text_at(mount, "mountPath").rstrip("/") == "/dev/shm"  # noqa: S108 - a path inside the container
        for mount in items(get(container, "volumeMounts"))
    )


def _containers(node: Node, seen: set[int] | None = None) -> Iterator[Node]:
    """Every mapping that names an image or a command, in the order of the text, each once."""
    seen = set() if seen is None else seen
    if id(node) in seen:  # aliases may repeat a node, or contain themselves
        return
    seen.add(id(node))
    pairs = list(entries(node))
    keys = {name for name, _, _ in pairs}
    if keys & {"command", "args"} or text_at(node, "image"):
        yield node
    for child in [value for name, _, value in pairs if name not in _HOOKS] or items(node):
        yield from _containers(child, seen)


def _read_container(
    text: str, container: Node, volumes: ScriptVolumes, injected: Mapping[str, Variable]
) -> list[Launch]:
    """`injected`: the variables that a controller sets."""
    image = text_at(container, "image")
    entry = insert_scripts(
        command_words(text, get(container, "command"), splits=False), mount_scripts(container, volumes)
    )
    own = command_words(text, get(container, "args"), splits=False)
    if not image and text_at(container, "tag"):  # a chart's values
        image = f"{text_at(container, 'repository')}:{text_at(container, 'tag')}"
    start = container.start_mark.index
    env, remarks = read_env(text, container)
    values = {name: variable.value for name, variable in env.items()}
    if not entry and not image and _is_runtime(container):
        return [_kserve_launch(text, container, start)]
    return [
        replace(
            launch,
            words=tuple(_expand(word, values) for word in launch.words),
            env={**env, **launch.env},
            gpus=count_gpus(container),
            granted=granted_by_pod(container),
            remarks=tuple(remarks),
        )
        for launch in read_container(text, image, entry, own, start, {**injected, **env})
    ]


def _is_runtime(container: Node) -> bool:
    """Whether KServe chooses the command, by the model's format."""
    named = f"{text_at(container, 'modelFormat', 'name')} {text_at(container, 'runtime')}".lower()
    return "vllm" in named or "huggingface" in named


def _kserve_launch(text: str, container: Node, start: int) -> Launch:
    name, args = text_at(container, "modelFormat", "name"), list_words(get(container, "args"))
    model = stored_model(container)
    words = [model, *args]
    if "vllm" not in f"{name} {text_at(container, 'runtime')}".lower():
        words = _hugging_face_words(args, model)
    if not words:
        return Launch(
            name="",
            start=start,
            problem=f"KServe's runtime for {name} serves without vLLM: --backend or --task says so",
        )
    env, remarks = read_env(text, container)
    return Launch(
        name="",
        start=start,
        words=(Word(text="vllm"), Word(text="serve"), *words),
        env=env,
        gpus=count_gpus(container),
        unread=(f"line {line_of(text, start)}: the flags that KServe's runtime adds",),
        remarks=tuple(remarks),
    )


def stored_model(container: Node) -> Word:
    """The model in KServe's folder: by its name in the storage, where that is Hugging Face's."""
    kind, slashes, name = text_at(container, "storageUri").partition("://")
    return Word(text=name.partition(":")[0] if slashes and kind == "hf" else MODELS)


def _hugging_face_words(args: Sequence[Word], model: Word) -> list[Word]:
    """The model and the flags that KServe's runtime for Hugging Face gives to vLLM; empty without vLLM.

    `model`: that in its folder, which an argument may replace.
    """
    words, at = list[Word](), 0
    while at < len(args):
        name, equals, value = args[at].text.partition("=")
        has_value = not equals and at + 1 < len(args) and not args[at + 1].text.startswith("--")
        each = args[at : at + 1 + has_value]
        at += len(each)
        own = name.removeprefix("--").replace("-", "_")
        given = each[1].text if has_value else value
        if own == "model_id":
            model = Word(text=given)
        elif (own == "backend" and given == "huggingface") or (own == "task" and given not in _GENERATES):
            return []
        elif own not in _RUNTIME_FLAGS:
            words += each
    return [model, *words]


def spread(launch: Launch, document: Node) -> Launch:
    """A server of KServe's over several hosts, whose sizes stand beside the model."""
    worker = get(document, "spec", "predictor", "workerSpec")
    if worker is None:
        return launch
    sizes = [
        word
        for key, flag in _SIZES.items()
        if (size := get(worker, key)) is not None
        for word in (Word(text=flag), word_of(size, "value"))
    ]
    stages = text_at(worker, "pipelineParallelSize")
    hosts = int(stages) if stages.isdecimal() and int(stages) > 1 else 2
    return replace(launch, words=(*launch.words, *sizes), hosts=hosts, ray=True)


def _expand(word: Word, values: dict[str, str]) -> Word:
    """`$(NAME)` of a variable that the container sets."""
    text = word.text
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return word if text == word.text else replace(word, text=text)


def read_env(text: str, container: Node) -> tuple[dict[str, Variable], list[str]]:
    env: dict[str, Variable] = {}
    remarks = []
    for entry in items(get(container, "env")):
        value = get(entry, "value")
        if value is not None:
            env[text_at(entry, "name")] = Variable(value=str(value.value), start=entry.start_mark.index)
    if (hidden := get(container, "envFrom")) is not None:
        line = line_of(text, hidden.start_mark.index)
        remarks.append(f"line {line}: the variables of `envFrom` are not read")
    return env, remarks


def count_gpus(container: Node) -> int | None:
    """The GPUs of a container; None if it asks for none."""
    for kind in ("limits", "requests"):
        for device in DEVICES:
            count = text_at(container, "resources", kind, device)
            if count.isdecimal() and int(count):
                return int(count)
    return None
