"""YAML documents as nodes with their places in the text."""

from collections.abc import Iterator
from typing import Any, Protocol

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Form, Word

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
MAPPING, SEQUENCE, SCALAR = "mapping", "sequence", "scalar"


class Mark(Protocol):
    @property
    def index(self) -> int: ...


class Node(Protocol):
    """A node as PyYAML composes it: the imports of PyYAML cost more than most commands take."""

    @property
    def id(self) -> str: ...
    @property
    def tag(self) -> str: ...
    @property
    def value(self) -> Any: ...  # noqa: ANN401 - text, nodes, or pairs of nodes
    @property
    def start_mark(self) -> Mark: ...
    @property
    def end_mark(self) -> Mark: ...


def parse_documents(text: str) -> list[Node]:
    """The documents of a YAML text that hold anything. Raises FlagError."""
    import yaml  # noqa: PLC0415 - only for YAML files

    try:
        documents: list[Any] = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        if "{{" in text:
            raise FlagError(
                f"{where}not YAML but a Helm template: render it, as in "
                "`helm template CHART | flettner lint -f -`"
            ) from error
        raise FlagError(f"{where}not YAML: {getattr(error, 'problem', error)}") from error
    except RecursionError as error:
        raise FlagError("not YAML: nested too deeply") from error
    return [node for node in documents if node is not None]


def entries(node: Node | None) -> Iterator[tuple[str, Node, Node]]:
    """Each key of a mapping with the nodes of key and value; own keys before merged keys (`<<`)."""
    left, seen = [node], set[int]()
    while left:
        mapping = left.pop()
        if mapping is None or mapping.id != MAPPING or id(mapping) in seen:
            continue  # a mapping that is merged again adds nothing: aliases could name it a billion times
        seen.add(id(mapping))
        merged: list[Node] = []
        for key, value in mapping.value:
            if key.id == SCALAR and key.tag != _MERGE:
                yield key.value, key, value
            elif key.id == SCALAR:
                merged += value.value if value.id == SEQUENCE else [value]
        left += reversed(merged)


def walk(node: Node | None) -> Iterator[tuple[str, Node]]:
    """Each key with its value in all mappings below a node, each mapping once."""
    left, seen = [node], set[int]()
    while left:
        part = left.pop()
        if part is None or id(part) in seen:  # aliases may repeat a node, or contain themselves
            continue
        seen.add(id(part))
        pairs = [(name, value) for name, _, value in entries(part)]
        yield from pairs
        left += reversed([value for _, value in pairs] or items(part))


def get(node: Node | None, *path: str) -> Node | None:
    """The value under nested keys; None if a key is missing or null."""
    for name in path:
        node = next((value for key, _, value in entries(node) if key == name), None)
    return None if node is None or node.tag == _NULL else node


def text_at(node: Node | None, *path: str) -> str:
    """The scalar under nested keys as it is written; "" if it is missing."""
    scalar = get(node, *path)
    return str(scalar.value) if scalar is not None and scalar.id == SCALAR else ""


def items(node: Node | None) -> list[Node]:
    return list(node.value) if node is not None and node.id == SEQUENCE else []


def list_words(node: Node | None) -> list[Word]:
    """The words of a list; other items than scalars are left out."""
    if node is None or node.id != SEQUENCE:
        return []
    form: Form = "flow" if getattr(node, "flow_style", False) else "block"
    return [word_of(item, form) for item in items(node) if item.id == SCALAR]


def word_of(node: Node, form: Form) -> Word:
    return Word(
        text=str(node.value),
        start=node.start_mark.index,
        end=node.end_mark.index,
        form="none" if getattr(node, "style", None) in ("|", ">") else form,
    )


def inner_place(text: str, start: int, end: int) -> tuple[int, int, bool]:
    """Where a scalar's own text stands, and whether its line breaks are kept."""
    style = text[start : start + 1]
    if style in ("|", ">"):
        return text.index("\n", start) + 1, end, style == "|"
    if style in ("'", '"'):
        return start + 1, end - 1, False
    return start, end, False
