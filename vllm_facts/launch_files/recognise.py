"""The kind of a file, by its name and content, and the servers that it starts."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.cloud_tasks import is_task, read_task
from flettner.vllm_facts.launch_files.compose import read_compose
from flettner.vllm_facts.launch_files.dockerfile import is_dockerfile, read_dockerfile
from flettner.vllm_facts.launch_files.flag_mappings import (
    find_llm_configs,
    is_config,
    read_config,
    read_ray_serve,
)
from flettner.vllm_facts.launch_files.helm_values import read_values
from flettner.vllm_facts.launch_files.inference_services import (
    is_controlled,
    read_controlled,
    read_model_service,
)
from flettner.vllm_facts.launch_files.installed import with_installed_release
from flettner.vllm_facts.launch_files.kubernetes import read_manifest
from flettner.vllm_facts.launch_files.launch import Launch, Word
from flettner.vllm_facts.launch_files.named_gpus import find_gpus_of_job
from flettner.vllm_facts.launch_files.script_faults import find_script_faults
from flettner.vllm_facts.launch_files.serving_runtimes import RUNTIMES, SERVICE, is_used, read_service
from flettner.vllm_facts.launch_files.shell_script import find_literals, read_script, without_places
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.launch_files.surroundings import texts_of
from flettner.vllm_facts.launch_files.systemd_unit import read_quadlet, read_unit
from flettner.vllm_facts.launch_files.templates import is_template, mask_template, restore_all
from flettner.vllm_facts.launch_files.written_files import find_written_files
from flettner.vllm_facts.launch_files.yaml_nodes import (
    MAPPING,
    SCALAR,
    Node,
    get,
    items,
    parse_documents,
    text_at,
)
from flettner.vllm_facts.shell_command.docker_run import image_version

KINDS = (
    "a compose file, Kubernetes manifest, chart's values, systemd unit, podman quadlet, Dockerfile, file of "
    "--config or Ray Serve, task of SkyPilot or dstack, shell script, Python file, notebook or list of flags"
)
_YAML_NAME, _SCRIPT_NAME = re.compile(r"\.(ya?ml|json)$"), re.compile(r"\.(ba|z|k)?sh$")
_UNIT = re.compile(r"^\[Service\][ \t]*$", re.MULTILINE)
_QUADLET = re.compile(r"^\[Container\][ \t]*$", re.MULTILINE)
_PYTHON = re.compile(
    r"\A(?:#![^\n]{0,80}\bpython|(?:[ \t]*(?:#[^\n]*)?\n){0,200}(?:import \w|from [\w.]{1,80} import ))"
)
_KEY = re.compile(r"^(---|[\w.-]+:(\s|$)|\{)", re.MULTILINE)
_FLAG_LIST = re.compile(r"\A([^\S\n]*(#.*)?\n)*[^\S\n]*--?[A-Za-z]")


def read_launches(name: str, text: str, env: Mapping[str, str] = {}) -> list[Launch]:
    """The servers that a file starts, in its order. Raises FlagError.

    `env`: variables that are set outside of it, if it is a script.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.lstrip().startswith("#")), "")
    script = _SCRIPT_NAME.search(name) is not None or text.lstrip().startswith("#!")
    if _is_python(name, text):
        from flettner.vllm_facts.launch_files.python_files import read_code  # noqa: PLC0415 - these alone

        return read_code(name, text)
    if script and "<<" in text and (launches := _read_writing_script(text, env)):
        return launches
    if _QUADLET.search(text):
        return read_quadlet(text)
    if name.endswith(".service") or _UNIT.search(text):
        return read_unit(text)
    if is_dockerfile(name, text):
        return read_dockerfile(text)
    if script:
        return _read_job(text, env)
    if _FLAG_LIST.match(text) and not first.startswith("---"):
        return [_read_flags(text)]
    if _YAML_NAME.search(name) or (_KEY.match(first) and "vllm serve" not in first):
        return _read_yaml_or_template(text)
    return _read_job(text, env)


def _read_yaml_or_template(text: str) -> list[Launch]:
    """A template that is no YAML before it is rendered is read without its values."""
    try:
        return _read_yaml(text)
    except FlagError:
        if is_template(text) and (launches := _read_template(text)):
            return launches
        raise


def _read_yaml(text: str) -> list[Launch]:
    try:
        documents = parse_documents(text)
        around = _find_around(documents)
        return [launch for node in documents for launch in _read_document(text, node, around)]
    except RecursionError as error:
        raise FlagError("the YAML refers to itself") from error


def _read_template(text: str) -> list[Launch]:
    masked = mask_template(text)
    with suppress(FlagError):
        return restore_all(text, masked, _read_yaml(masked.text))
    return []


def _is_python(name: str, text: str) -> bool:
    return name.endswith((".py", ".ipynb")) or _PYTHON.match(text) is not None


def _read_writing_script(text: str, env: Mapping[str, str]) -> list[Launch]:
    """The servers that a script starts, or else those of the files that it writes by here-documents."""
    try:
        launches, values = _read_job(text, env), {**env, **find_literals(text)}
        files = [] if launches else list(find_written_files(text, values))
    except FlagError:
        return []
    for each in files:
        with suppress(FlagError):  # text of another kind
            launches += map(each.place, read_launches(each.name, each.text, values))
    return launches


def _read_job(text: str, env: Mapping[str, str]) -> list[Launch]:
    """The servers of a script, on the GPUs for which it asks Slurm."""
    gpu, count, nodes = find_gpus_of_job(text)
    launches = with_installed_release(read_script(text, env=env), text)
    if faults := find_script_faults(text, launches):
        first, rest = faults[0], faults[1:]
        launches = [
            replace(
                launch,
                entry_fault=fault.together(*faults)
                if (fault := launch.entry_fault)
                else first.together(*rest),
            )
            for launch in launches
        ]
    if not gpu and count is None:
        return launches
    return [replace(launch, gpu=gpu, gpus=count, hosts=nodes if nodes > 1 else None) for launch in launches]


def read_script_of(launch: Launch, text: str) -> list[Launch]:
    """The servers of the script that a container starts, with its environment. Raises FlagError."""
    env = {name: variable.value for name, variable in launch.env.items()}
    return [
        replace(
            own,
            name=launch.name,
            gpus=launch.gpus if own.gpus is None else own.gpus,
            devices=launch.devices,
            together=launch.together,
            container=launch.container,
            granted=launch.granted,
            start=launch.start,
            remarks=(*launch.remarks, *own.remarks),
            words=without_places(own.words),
            env={**launch.env, **own.env},
            version=launch.version,
            bypassed_image=launch.bypassed_image,
        )
        for own in read_script(text, env=env)
    ]


_AROUND = ("Service", "ConfigMap")
_Around = Mapping[tuple[str, str], Sequence[Node]]


def _find_around(documents: Sequence[Node]) -> _Around:
    """The resources that complete others, of each namespace; "" for resources that name none."""
    around = defaultdict[tuple[str, str], list[Node]](list)
    for document in documents:
        for part in (document, *items(get(document, "items"))):
            if (kind := text_at(part, "kind")) in (*_AROUND, "Model", SERVICE, *RUNTIMES):
                around[kind, text_at(part, "metadata", "namespace")].append(part)
    return around


def _read_document(text: str, document: Node, around: _Around) -> list[Launch]:
    if document.id != MAPPING:
        return []
    if is_task(document):
        return read_task(text, document)
    if get(document, "services") is not None and get(document, "kind") is None:
        return read_compose(text, document)
    if get(document, "servingEngineSpec", "modelSpec") is not None:
        return read_values(text, document)
    if is_controlled(document):
        models = around.get(("Model", text_at(document, "metadata", "namespace")), ())
        return read_controlled(text, document, models)
    if get(document, "modelArtifacts") is not None:
        return [*read_model_service(text, document), *read_manifest(text, document)]
    if configs := find_llm_configs(document):
        return read_ray_serve(configs)
    if text_at(document, "kind") == "RayService":
        return [*_read_ray_service(document), *read_manifest(text, document)]
    if get(document, "kind") is None and is_config(document):
        return read_config(document)
    parts = items(get(document, "items")) if get(document, "kind") is not None else []
    return [launch for part in parts or [document] for launch in _read_resource(text, part, around)]


def _read_resource(text: str, part: Node, around: _Around) -> list[Launch]:
    kind, namespace = text_at(part, "kind"), text_at(part, "metadata", "namespace")
    if kind == SERVICE and (launches := read_service(text, part, _runtimes_in(namespace, around))):
        return launches
    launches = read_manifest(text, part, *(around.get((each, namespace), ()) for each in _AROUND))
    if kind not in RUNTIMES or not all(launch.words for launch in launches):
        return launches
    used = any(
        is_used(part, resources, _runtimes_in(place, around))
        for (of, place), resources in around.items()
        if of == SERVICE and (place == namespace or kind == RUNTIMES[1])
    )
    return [] if used else launches


def _runtimes_in(namespace: str, around: _Around) -> list[Node]:
    """KServe's runtimes that a service in the namespace may have."""
    return [*around.get((RUNTIMES[0], namespace), ()), *around.get((RUNTIMES[1], ""), ())]


def _read_ray_service(document: Node) -> list[Launch]:
    """The models of a RayService: a text that holds a configuration of Ray Serve, without places."""
    config, start = get(document, "spec", "serveConfigV2"), document.start_mark.index
    inner = parse_documents(str(config.value)) if config is not None and config.id == SCALAR else []
    launches = [launch for node in inner for launch in read_ray_serve(find_llm_configs(node))]
    image = next(iter(texts_of(get(document, "spec", "rayClusterConfig"), "image")), "")
    return [
        replace(launch, start=start, words=without_places(launch.words), version=image_version(image))
        for launch in launches
    ]


def _read_flags(text: str) -> Launch:
    """Flags alone, for `vllm serve`."""
    words = [word for command in split_commands(text, lines=False) for word in command]
    return Launch(name="", start=words[0].start, words=(Word(text="vllm"), Word(text="serve"), *words))
