"""Servers whose command another controller writes: KServe's, llm-d's and operators' resources.

What they add of their own (port, name, probes) is left out; what it may hide is named.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_table import NAMES
from flettner.vllm_facts.launch_files.kubernetes import count_gpus, read_env
from flettner.vllm_facts.launch_files.launch import Launch, Word, line_of
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.launch_files.yaml_nodes import (
    SCALAR,
    Node,
    entries,
    get,
    inner_place,
    items,
    list_words,
    text_at,
    word_of,
)
from flettner.vllm_facts.serve_config import EntryFault
from flettner.vllm_facts.shell_command.docker_run import image_version

_SERVE = (Word(text="vllm"), Word(text="serve"))
_LLM_SERVICE = "LLMInferenceService"
_SIZES = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
}
_DROPPED = (("tensor", "before 0.20"), ("pipeline", "as of 0.20"))
"""Of a single pod: kserve/kserve#5773, kserve/kserve#6044."""
_SWITCHES = {"enableLoRA": "enable_lora", "enableTool": "enable_auto_tool_choice"}
"""Of production-stack, which writes no flag for false."""

MORE = "VLLM_ADDITIONAL_ARGS"
"""The variable in which KServe's templates take further flags."""


def is_controlled(document: Node) -> bool:
    kind = text_at(document, "kind")
    return kind == _LLM_SERVICE or (kind != "" and get(document, "spec", "vllmConfig") is not None)


def read_controlled(text: str, document: Node, models: Sequence[Node]) -> list[Launch]:
    """The servers of a resource that `is_controlled`; `models`: see _read_operator."""
    if text_at(document, "kind") == _LLM_SERVICE:
        return _read_llm_service(text, document)
    return _read_operator(text, document, models)


def _read_llm_service(text: str, document: Node) -> list[Launch]:
    """KServe's LLMInferenceService: its server, and the one that prefills."""
    spec = get(document, "spec")
    model = _model(get(spec, "model", "uri"))
    name = f"LLMInferenceService/{text_at(document, 'metadata', 'name')}"
    parts = [(name, spec), (f"{name}: prefill", get(spec, "prefill"))]
    return [
        replace(launch, entry_fault=_find_dropped(part, launch.words))
        for label, part in parts
        if part is not None
        for launch in _read_part(text, part, model, label)
    ]


def _find_dropped(part: Node, words: Iterable[Word]) -> EntryFault | None:
    """The sizes that KServe's templates of a single pod leave out, where no flag repeats them."""
    given = [word.text.partition("=")[0] for word in words]
    dropped = [
        key
        for key, _ in _DROPPED
        if (text_at(part, "parallelism", key) or "1") != "1"
        and given.count(_SIZES[key]) + given.count(f"-{key[0]}p") == 1
    ]
    if not dropped or get(part, "worker") is not None:
        return None
    by = " and ".join(f"spec.parallelism.{key} ({since})" for key, since in _DROPPED if key in dropped)
    return EntryFault(
        f"KServe does not hand {by} on to vLLM where one pod serves: it runs on fewer GPUs than the pod has, "
        "and the resource is Ready",
        of="controller",
    )


def read_model_service(text: str, document: Node) -> list[Launch]:
    """The values of llm-d's chart `modelservice`: the servers that decode and prefill."""
    model = _model(get(document, "modelArtifacts", "uri"))
    launches = []
    for role in ("decode", "prefill"):
        part = get(document, role)
        if part is None or text_at(part, "create").lower() == "false":
            continue
        for container in items(get(part, "containers")):
            if text_at(container, "modelCommand") == "vllmServe":
                launches.append(_launch(text, part, container, model, role))  # noqa: PERF401 - three loops deep
    return launches


def _read_operator(text: str, document: Node, models: Sequence[Node]) -> list[Launch]:
    """A resource with `vllmConfig`: LLMKube's InferenceService, production-stack's VLLMRuntime.

    `models`: the resources of kind Model beside it, which `modelRef` names.
    """
    spec = get(document, "spec")
    config, name = get(spec, "vllmConfig"), text_at(document, "metadata", "name")
    if text_at(spec, "runtime") not in ("", "vllm"):
        return []
    named = [each for each in models if text_at(each, "metadata", "name") == text_at(spec, "modelRef")]
    model = get(spec, "model", "modelURL") or (get(named[0], "spec", "source") if named else None)
    deployed = get(spec, "deploymentConfig") or spec
    env, remarks = read_env(text, config or document)
    gpus = text_at(deployed, "resources", "gpu")
    hidden = text_at(spec, "lmCacheConfig", "enabled").lower() == "true"
    return [
        Launch(
            name=f"{text_at(document, 'kind')}/{name}",
            start=document.start_mark.index,
            words=(
                *_SERVE,
                *([word_of(model, "none")] if model is not None else []),
                *_camel_words(get(spec, "model")),
                *_camel_words(config),
                *list_words(get(spec, "extraArgs")),
                *list_words(get(config, "extraArgs")),
            ),
            env=env,
            version=image_version(text_at(deployed, "image", "name") or text_at(deployed, "image")),
            gpus=int(gpus) or None if gpus.isdecimal() else None,
            unread=(f"line {line_of(text, document.start_mark.index)}: lmCacheConfig",) if hidden else (),
            remarks=tuple(remarks),
        )
    ]


def _camel_words(config: Node | None) -> Iterable[Word]:
    """The flags that keys as `maxModelLen` are named after."""
    for key, _, value in entries(config):
        name = _SWITCHES.get(key) or re.sub(r"(?=[A-Z])", "_", key).lower()
        if name not in NAMES or value.id != SCALAR or not value.value:
            continue
        flag, written = f"--{name.replace('_', '-')}", word_of(value, "value")
        if written.text.lower() == "true":
            yield Word(text=flag)
        elif written.text.lower() == "false":
            if key not in _SWITCHES:
                yield Word(text=f"--no-{flag[2:]}")
        else:
            yield replace(written, text=flag, form="none")
            yield written


def _read_part(text: str, part: Node, model: Word | None, label: str) -> Iterable[Launch]:
    containers = [
        container
        for container in items(get(part, "template", "containers"))
        if text_at(container, "name") == "main" and get(container, "command") is None
    ]
    if containers:
        yield _launch(text, part, containers[0], model, label)
    elif not items(get(part, "template", "containers")):
        yield _launch(text, part, part, model, label)


def _launch(text: str, part: Node, container: Node, model: Word | None, name: str) -> Launch:
    sizes = get(part, "parallelism")
    words = [*_SERVE, *([model] if model else [])]
    for key, flag in _SIZES.items():
        if (size := get(sizes, key)) is not None:
            words += [Word(text=flag), word_of(size, "value")]
    if text_at(sizes, "expert").lower() == "true":
        words.append(Word(text="--enable-expert-parallel"))
    words += list_words(get(container, "args"))
    env, remarks = read_env(text, container)
    words += _more_words(text, container)
    return Launch(
        name=name,
        start=container.start_mark.index,
        words=tuple(words),
        env={key: variable for key, variable in env.items() if key != MORE},
        version=image_version(text_at(container, "image")),
        gpus=count_gpus(container),
        hosts=2 if get(part, "worker") is not None else None,
        remarks=tuple(remarks),
    )


def _more_words(text: str, container: Node) -> list[Word]:
    for entry in items(get(container, "env")):
        value = get(entry, "value")
        if text_at(entry, "name") == MORE and value is not None:
            start, end, _ = inner_place(text, value.start_mark.index, value.end_mark.index)
            plain = [word.text for words in split_commands(str(value.value), lines=False) for word in words]
            try:
                placed = [word for words in split_commands(text, start, end, lines=False) for word in words]
            except FlagError:
                placed = []
            same = [word.text for word in placed] == plain
            return placed if same else [Word(text=word) for word in plain]
    return []


def _model(uri: Node | None) -> Word | None:
    """`org/model` of `hf://org/model`; a path of other storage stays."""
    if uri is None:
        return None
    word = word_of(uri, "none")
    return replace(word, text=word.text.removeprefix("hf://"))
