"""Tasks and services of SkyPilot and dstack: a shell script, the GPUs that it gets, and its variables.

SkyPilot takes one of several kinds of GPU. A server is judged on each of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flettner.vllm_facts.launch_files.containers import read_inline
from flettner.vllm_facts.launch_files.installed import with_installed_release
from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word
from flettner.vllm_facts.launch_files.shell_variables import plain_values
from flettner.vllm_facts.launch_files.yaml_nodes import (
    MAPPING,
    SCALAR,
    SEQUENCE,
    Node,
    entries,
    get,
    items,
    text_at,
    word_of,
)
from flettner.vllm_facts.shell_command.docker_run import image_version

_KINDS = frozenset({"service", "task", "dev-environment"})  # of dstack
_CHOICES = ("any_of", "ordered")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpus:
    """Of one host."""

    name: str = ""
    count: int | None = None

    @property
    def label(self) -> str:
        return f"on {self.name}:{self.count}" if self.count else f"on {self.name}"


def is_task(document: Node) -> bool:
    """Of SkyPilot, or of dstack with commands of its own."""
    if get(document, "kind") is not None:
        return False
    runs = get(document, "run")
    parts = any(get(document, name) is not None for name in ("resources", "setup", "num_nodes", "envs"))
    of_dstack = text_at(document, "type") in _KINDS and bool(items(get(document, "commands")))
    return of_dstack or (parts and runs is not None and runs.id == SCALAR)


def read_task(text: str, document: Node) -> list[Launch]:
    """The servers of the script, each on all kinds of GPU that the task may get. Raises FlagError."""
    if (run := get(document, "run")) is not None:
        scripts, nodes = [word_of(run, "value")], text_at(document, "num_nodes")
        gpus = list(_accelerators(get(document, "resources")))
        image = text_at(document, "resources", "image_id").removeprefix("docker:")
    else:
        scripts = [word_of(each, "block") for each in items(get(document, "commands"))]
        gpus = [_gpus_of_dstack(get(document, "resources", "gpu"))]
        nodes, image = text_at(document, "nodes"), text_at(document, "image")
    hosts = int(nodes) if nodes.isdecimal() and int(nodes) > 1 else None
    env = {**_variables(get(document, "envs")), **_variables(get(document, "env"))}
    launches = [
        replace(
            launch,
            name=choice.label if len(gpus) > 1 else launch.name,
            env={**env, **launch.env},
            gpu=choice.name,
            gpus=choice.count,
            alternative=at > 0,
            hosts=hosts,
            version=image_version(image),
        )
        for at, choice in enumerate(gpus or [_Gpus()])
        for script in _join(scripts)
        for launch in read_inline(text, script, {**plain_values(env), **_granted(choice.count, hosts or 1)})
    ]
    return with_installed_release(
        launches, "\n".join([text_at(document, "setup"), *(s.text for s in scripts)])
    )


def _join(scripts: Sequence[Word]) -> Sequence[Word]:
    """One script: what an earlier command sets holds for a later one. Only a lone command keeps its place."""
    if len(scripts) == 1:
        return scripts
    return [Word(text="\n".join(script.text for script in scripts), start=scripts[0].start)]


def _granted(count: int | None, hosts: int) -> dict[str, str]:
    """The variables by which both tell a script its GPUs and hosts."""
    known = {"SKYPILOT_NUM_NODES": hosts, "DSTACK_NODES_NUM": hosts}
    if count:
        known |= {"SKYPILOT_NUM_GPUS_PER_NODE": count, "DSTACK_GPUS_PER_NODE": count}
        known |= {"DSTACK_GPUS_NUM": count * hosts}
    return {name: str(value) for name, value in known.items()}


def _variables(node: Node | None) -> dict[str, Variable]:
    given = {
        name: Variable(value=str(value.value))
        for name, _, value in entries(node)
        if value.id == SCALAR and str(value.value) not in ("", "null", "~")
    }
    for item in items(node):
        name, equals, value = str(item.value).partition("=") if item.id == SCALAR else ("", "", "")
        given |= {name: Variable(value=value)} if equals else {}
    return given


def _accelerators(resources: Node | None) -> Iterator[_Gpus]:
    """`A100:8`, or one of several: a mapping, a list, or whole resources under `any_of`."""
    for name in _CHOICES:
        for choice in items(get(resources, name)):
            yield from _accelerators(choice)
    asked = get(resources, "accelerators")
    if asked is None:
        return
    if asked.id == MAPPING:
        # `{A100:1}` without a blank is one key without a value
        yield from (
            _gpus(name if ":" in name else f"{name}:{value.value}") for name, _, value in entries(asked)
        )
    elif asked.id == SEQUENCE:
        yield from (_gpus(str(each.value)) for each in items(asked) if each.id == SCALAR)
    else:
        yield _gpus(str(asked.value))


def _gpus(text: str) -> _Gpus:
    """`H100:8`; without a number it is one. SkyPilot writes `A100` for the one with 40 GB."""
    name, _, count = text.partition(":")
    name = name.strip() + "-40GB" * (name.strip() == "A100")
    return _Gpus(name=name, count=int(count) if count.strip().isdecimal() else 1)


def _gpus_of_dstack(node: Node | None) -> _Gpus:
    """`H100:80GB:8`, in any order, or a mapping; a range of numbers counts as unknown."""
    if node is None:
        return _Gpus()
    if node.id == MAPPING:
        names = get(node, "name")
        parts = [text_at(node, "name"), text_at(node, "memory"), text_at(node, "count")]
        parts = parts if names is not None and names.id == SCALAR else ["", *parts[1:]]
    else:
        parts = [part.strip() for part in str(node.value).split(":")]
    count = next((part for part in parts if part.isdecimal()), "")
    unclear = any(".." in part for part in parts)
    named = [part for part in parts if part and not part.isdecimal() and ".." not in part]
    if not any(part[:1].isalpha() for part in named) or "," in "".join(named):
        named = []
    return _Gpus(name=" ".join(named), count=int(count) if count else None if unclear else 1)
