"""The files of vLLM that sources name exist, with the names and texts that they are cited for."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from flettner.vllm_facts.closed_routes import DEV_ROUTES
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.regressions import REGRESSIONS
from flettner.vllm_facts.releases import NAME, cite
from tests.support.real_vllm import real_vllm
from tests.support.sources import documented_checks, references, source_texts

CITED = re.compile(re.escape(NAME) + r" (vllm/[\w/]+\.py)(?:: (.+?))?(?: \([^()]+\))?")
WORD = re.compile(r"[A-Za-z_][\w.]*")


@cache
def installed() -> Path:
    """The folder that holds vLLM's package; it is found without an import, which takes seconds."""
    find = "from importlib.util import find_spec; print(find_spec('vllm').submodule_search_locations[0])"
    done = subprocess.run([real_vllm().python, "-c", find], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).parent


@cache
def text_of(file: str) -> str:
    """A file with the parts of its long strings joined, without the values that its messages fill in."""
    joined = re.sub(r'"\s*\n\s*f?"', "", (installed() / file).read_text())
    return re.sub(r" ?\(?\{[^{}]*\}\)?|`", "", joined)


def cited() -> list[str]:
    """Each file of the newest release with what it is cited for."""
    sources = [*source_texts().values(), *(cite(lint.source) for lint in documented_checks())]
    sources += [cite(row.issue) for row in REGRESSIONS] + [knob.source for knob in KNOBS.values()]
    cited = {reference for source in sources for reference in references(source)}
    return sorted(reference for reference in cited if reference.startswith(f"{NAME} "))


def missing(about: str, text: str) -> Iterator[str]:
    """The names, and the texts in quotes, that the file does not have; "…" and braces stand for any."""
    quoted = re.findall(r"'(.+?)'(?=$|[:,])", about)
    for part in (piece for quote in quoted for piece in re.split(r"…|\{[^}]*\}", quote)):
        if part.strip() not in text:
            yield part.strip()
    names = (
        word for word in re.split(r"[:,] ?", re.sub(r"'.+?'(?=$|[:,])", "", about)) if WORD.fullmatch(word)
    )
    yield from (name for name in names if name not in text)


@pytest.mark.parametrize("reference", cited())
def test_the_file_has_what_it_is_cited_for(reference: str) -> None:
    match = CITED.fullmatch(reference)
    assert match, reference
    file, about = match.groups()
    assert (installed() / file).is_file()
    assert not list(missing(about or "", text_of(file)))


def test_what_a_file_lacks_is_missing() -> None:
    text = text_of("vllm/config/model.py")
    assert list(missing("_resolve_auto_dtype, _no_such_name: 'no such text'", text)) == [
        "no such text",
        "_no_such_name",
    ]


def test_the_routes_of_development_mode_are_known() -> None:
    files = [
        file
        for folder in ("serve/dev", "rl")
        for file in (installed() / "vllm/entrypoints" / folder).rglob("*.py")
    ]
    routes = {route for file in files for route in re.findall(r'@router\.\w+\(\s*"/(\w+)"', file.read_text())}

    assert routes == set(DEV_ROUTES)
