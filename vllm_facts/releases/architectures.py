"""The architectures that each release of vLLM implements, and the Transformers that a type of model needs.

`scripts/vllm_architectures.py` writes the tables from the sources of both. They are read when first asked.
A name that they do not have, and a build whose version is no release (nightly, candidate), are not judged.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

FOLDER = Path(__file__).parent

FALLBACK_SINCE = "0.7.2"
"""The first release that runs an architecture without an implementation of its own by that of Transformers.

Where that one fits, and not with `--model-impl vllm`: vLLM 0.8 vllm/model_executor/model_loader/utils.py:
resolve_transformers_fallback."""

Patch: TypeAlias = tuple[int, int, int]
Span: TypeAlias = tuple[int, int]
"""The first and the last release that has something, as places in the list of releases."""

_RELEASE = r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4})(?:\.\d{1,4}|\.?post\d{1,4})?)?(?:\+(?:cu\d*|cpu))?"
"""As text, compiled on use: most commands ask nothing here. A build for ROCm may be one of AMD's own."""

_TASK = (
    r"(?:For(?:CausalLM|ConditionalGeneration|SequenceClassification|TokenClassification|TextEncoding"
    r"|Embedding|RewardModel|Retrieval)|LMHeadModel|ChatModel|EmbeddingModel|RewardModel|Model)$"
)
"""What vLLM exchanges to make a model of vectors or scores of one that generates, and the other way round."""


class Architectures(NamedTuple):
    """`stems`: the spans of all architectures that differ in their task only."""

    releases: tuple[Patch, ...]
    spans: Mapping[str, tuple[Span, ...]]
    stems: Mapping[str, tuple[Span, ...]]


class ModelType(NamedTuple):
    """`transformers`: the first release with its configuration, "" for none.

    `vllm`: the first release that serves it with its own configuration or the Transformers of its tests.
    """

    transformers: str
    vllm: str


class Requirement(NamedTuple):
    """The Transformers of a release: the least, the first that is excluded, that of its tests. "": none."""

    least: str
    below: str
    tested: str


@cache
def read_architectures() -> Architectures:
    head, *lines = _read_lines("architectures.tsv")
    names = head.removeprefix("# ").split(" ")
    places = {name: place for place, name in enumerate(names)} | {"": len(names) - 1}
    spans: dict[str, tuple[Span, ...]] = {}
    stems: dict[str, tuple[Span, ...]] = {}
    for line in lines:
        name, _, texts = line.partition("\t")
        parts = (text.partition("-") for text in texts.split(" "))
        spans[name] = tuple((places[first], places[last]) for first, _, last in parts)
        stems[_stem(name)] = stems.get(_stem(name), ()) + spans[name]
    return Architectures(tuple(map(parse_release, names)), spans, stems)


def _read_lines(file: str) -> list[str]:
    return (FOLDER / file).read_text(encoding="utf-8").splitlines()


def _stem(name: str) -> str:
    return re.sub(_TASK, "", name)


def parse_release(text: str) -> Patch:
    """(0, 10, 2) of "0.10.2"; "4.55" is (4, 55, 0)."""
    first, second, third = [*map(int, text.split(".")), 0, 0][:3]
    return first, second, third


def newest_release() -> str:
    """The last release that the table covers."""
    return _format(read_architectures().releases[-1])


def is_known(name: str) -> bool:
    """Whether some release implements the architecture."""
    return name in read_architectures().spans


def is_kin_known(name: str) -> bool:
    """Whether some release implements an architecture that differs in its task only."""
    return _stem(name) in read_architectures().stems


def is_served(name: str, version: str) -> bool | None:
    """Whether the release implements the architecture; None if the table does not tell."""
    return None if not is_known(name) else _has(read_architectures().spans[name], version)


def is_kin_served(name: str, version: str) -> bool | None:
    """The same of any architecture that differs in its task only: vLLM may serve the model as that one."""
    spans = read_architectures().stems.get(_stem(name))
    return None if spans is None else _has(spans, version)


def _has(spans: tuple[Span, ...], version: str) -> bool | None:
    places = _places(version)
    answers = {any(first <= place <= last for first, last in spans) for place in places}
    return answers.pop() if len(answers) == 1 else None


def _places(version: str) -> range:
    """The releases of the table that the version may be like; empty for a build that is none of them.

    "0.10" may be any of its patches; a patch that the table lacks has what both of its neighbours have.
    """
    releases, match = read_architectures().releases, re.fullmatch(_RELEASE, version)
    if match is None:
        return range(0)
    minor = int(match[1]), int(match[2])
    if match[3] is None:
        places = [place for place, release in enumerate(releases) if release[:2] == minor]
        return range(places[0], places[-1] + 1) if places else range(0)
    patch = (*minor, int(match[3]))
    after = bisect_right(releases, patch)
    if after and releases[after - 1] == patch:
        return range(after - 1, after)
    return range(after - 1, after + 1) if 0 < after < len(releases) else range(0)


def first_release(name: str, after: str = "") -> str:
    """The first release that implements the architecture, later than `after`; "" if none does."""
    table, bound = read_architectures(), _places(after)
    least = bound[-1] if after and bound else -1
    starts = (first for first, _ in table.spans.get(name, ()) if first > least)
    return _format(table.releases[place]) if (place := min(starts, default=None)) is not None else ""


def last_release(name: str) -> str:
    """The last release that implements the architecture; "" if the newest one of the table does, or none."""
    table = read_architectures()
    place = max((last for _, last in table.spans.get(name, ())), default=len(table.releases) - 1)
    return _format(table.releases[place]) if place < len(table.releases) - 1 else ""


def _format(release: Patch) -> str:
    return ".".join(map(str, release))


@cache
def _read_model_types() -> Mapping[str, ModelType]:
    rows = (line.split("\t") for line in _read_lines("model_types.tsv")[1:])
    return {kind: ModelType(transformers, vllm) for kind, transformers, vllm in rows}


def find_model_type(kind: str) -> ModelType | None:
    """What a type of model needs; None if the table does not have it."""
    return _read_model_types().get(kind)


@cache
def _read_requirements() -> Mapping[Patch, Requirement]:
    rows = (line.split("\t") for line in _read_lines("transformers.tsv"))
    return {parse_release(release): Requirement(*bounds) for release, *bounds in rows}


def find_requirement(version: str) -> Requirement | None:
    """The Transformers that the release requires; None if it is not known."""
    places, releases = _places(version), read_architectures().releases
    required = {_read_requirements().get(releases[place]) for place in places}
    return required.pop() if len(required) == 1 else None


def is_older(version: str, release: str) -> bool:
    """Whether the version is a known release before `release`; "0.10" counts as its last patch."""
    places = _places(version)
    return bool(places) and read_architectures().releases[places[-1]] < parse_release(release)
