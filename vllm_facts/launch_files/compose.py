"""Docker Compose files: each service that starts vLLM."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from flettner.vllm_facts.launch_files.containers import command_words, read_container
from flettner.vllm_facts.launch_files.granted import granted_by_service
from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word, line_of
from flettner.vllm_facts.launch_files.shell_variables import explain_defaults, replace_defaults
from flettner.vllm_facts.launch_files.surroundings import describe_service
from flettner.vllm_facts.launch_files.yaml_nodes import SCALAR, Node, entries, get, items, text_at, word_of


def read_compose(text: str, document: Node) -> list[Launch]:
    """The servers of the services. Raises FlagError."""
    services = [(*each, _host_ports(each[2])) for each in entries(get(document, "services"))]
    taken = Counter(port for *_, ports in services for port in ports)
    launches = []
    for name, key, service, ports in services:
        instead = any(taken[port] > 1 for port in ports)  # of another, which has its port
        launches += [
            replace(launch, name=name, together="" if instead else launch.together)
            for launch in _read_service(text, service, key.start_mark.index)
        ]
    return launches


def _host_ports(service: Node) -> set[str]:
    """The ports of the host that it publishes, as they are written."""
    texts = [str(entry.value) if entry.id == SCALAR else "" for entry in items(get(service, "ports"))]
    published = [text_at(entry, "published") for entry in items(get(service, "ports"))]
    return {*(replace_defaults(text).rpartition(":")[0] for text in texts), *published} - {""}


def _read_service(text: str, service: Node, start: int) -> list[Launch]:
    named = get(service, "image")
    image = replace_defaults(text_at(service, "image"))
    given = get(service, "entrypoint")
    entry = [word for word in command_words(text, given, splits=True) if word.text]
    cleared = given is not None and not given.tag.endswith(":null") and not entry
    own = command_words(text, get(service, "command"), splits=True)
    environment = _read_environment(text, get(service, "environment"))
    left = _left_to_shell(environment, (*entry, *own))
    remarks = []
    for name, what in (("env_file", "variables"), ("extends", "settings")):
        if (hidden := get(service, name)) is not None:
            line = line_of(text, hidden.start_mark.index)
            remarks.append(f"line {line}: the {what} of `{name}` are not read")
    little = not any(get(service, name) is not None for name in ("shm_size", "ipc", "extends"))
    remarks += explain_defaults(text, [word_of(named, "value")] if named is not None else [])
    return [
        replace(
            launch,
            env={**environment, **launch.env},
            gpus=_count_gpus(service),
            devices=_list_gpus(service),
            together=_accelerator(service, environment) if get(service, "profiles") is None else "",
            script=launch.script or (_find_script(service, (*entry, *own)) if launch.problem else ""),
            granted=granted_by_service(service),
            container=describe_service(service),
            locks_memory=_locks_memory(service),
            little_shared_memory="compose" if little and not _mounts_shared_memory(service) else None,
            words=tuple(_with_defaults(launch.words)),
            remarks=(*remarks, *launch.remarks, *explain_defaults(text, launch.words)),
        )
        for launch in read_container(text, image, entry, own, start, left, cleared=cleared)
    ]


def _find_script(service: Node, words: Sequence[Word]) -> str:
    """The script beside the file that a volume puts where the command runs it; "" for none."""
    named = " ".join(word.text for word in words)
    for volume in items(get(service, "volumes")):
        source, _, rest = str(volume.value).partition(":") if volume.id == SCALAR else ("", "", "")
        target = rest.partition(":")[0]
        if source.startswith("./") and target.endswith(".sh") and target in named:
            return source
    return ""


def _with_defaults(words: Sequence[Word]) -> Iterator[Word]:
    """The words as compose gives them: what becomes empty is none, unless it is a list's item."""
    for word in words:
        text = replace_defaults(word.text)
        if text or not word.text or word.form in ("block", "flow"):
            yield replace(word, text=text)


def _left_to_shell(environment: Mapping[str, Variable], words: Sequence[Word]) -> dict[str, Variable]:
    """The variables that the container's shell replaces: compose itself replaces all without a second `$`."""
    used = " ".join(word.text for word in words)
    return {
        name: variable
        for name, variable in environment.items()
        if f"$${name}" in used or f"$${{{name}" in used
    }


def _mounts_shared_memory(service: Node) -> bool:
    volumes, mounted = items(get(service, "volumes")), [text_at(service, "tmpfs")]
    for place in (*volumes, *items(get(service, "tmpfs"))):
        mounted += str(place.value).split(":") if place.id == SCALAR else [text_at(place, "target")]
    return "/dev/shm" in mounted  # noqa: S108 - a path inside the container


def _locks_memory(service: Node) -> bool:
    """Whether `ulimits` lets the container pin all memory, as a network card with RDMA needs."""
    limits = (text_at(service, "ulimits", "memlock"), text_at(service, "ulimits", "memlock", "soft"))
    return "-1" in limits


def _read_environment(text: str, node: Node | None) -> dict[str, Variable]:
    given: dict[str, Variable] = {}
    for name, key, value in entries(node):
        if value.id == SCALAR:
            whole = _whole_lines(text, key.start_mark.index, value.end_mark.index)
            given[name] = Variable(value=str(value.value), start=key.start_mark.index, whole=whole)
    for item in items(node):
        name, equals, text_value = str(item.value).partition("=")
        if item.id == SCALAR and equals:
            whole = _whole_lines(text, item.start_mark.index, item.end_mark.index)
            given[name] = Variable(value=text_value, start=item.start_mark.index, whole=whole)
    return given


def _whole_lines(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The lines of an entry, if they hold nothing else."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    rest = text[end:stop].strip()
    alone = not text[begin:start].strip(" -") and (not rest or rest.startswith("#"))
    return (begin, min(stop + 1, len(text))) if alone else None


def _count_gpus(service: Node) -> int | None:
    """None if all or unknown."""
    return len(_list_gpus(service)) or None


def _accelerator(service: Node, environment: Mapping[str, Variable]) -> str:
    """The kind of device that the file gives a service, of which it may share one; "unsaid" without one."""
    devices = " ".join(str(device.value) for device in items(get(service, "devices")))
    if text_at(service, "runtime") == "habana" or "HABANA_VISIBLE_DEVICES" in environment:
        return "gaudi"
    if "/dev/kfd" in devices:
        return "amd"
    if "/dev/dri" in devices:
        return "intel"
    reserved = get(service, "deploy", "resources", "reservations", "devices")
    asks = reserved is not None or get(service, "gpus") is not None or text_at(service, "runtime") == "nvidia"
    return "nvidia" if asks or "NVIDIA_VISIBLE_DEVICES" in environment else "unsaid"


def _list_gpus(service: Node) -> tuple[str, ...]:
    """By `deploy.resources.reservations.devices`, or by `gpus`; empty if all or unknown."""
    reserved = items(get(service, "deploy", "resources", "reservations", "devices"))
    for device in [*reserved, *items(get(service, "gpus"))]:
        kinds = {str(kind.value) for kind in items(get(device, "capabilities"))}
        if kinds and "gpu" not in kinds:
            continue
        ids = items(get(device, "device_ids"))
        count = text_at(device, "count")
        if ids or count.isdecimal():
            return tuple(str(each.value) for each in ids) or _first_gpus(count)
    plain = text_at(service, "gpus")
    return _first_gpus(plain) if plain.isdecimal() else ()


def _first_gpus(count: str) -> tuple[str, ...]:
    return tuple(map(str, range(min(int(count), 64))))
