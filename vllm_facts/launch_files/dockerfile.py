"""Dockerfiles: the server that the image of the last stage starts."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from posixpath import basename, join, normpath

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import SHELLS
from flettner.vllm_facts.launch_files.containers import read_container
from flettner.vllm_facts.launch_files.installed import with_installed_release
from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word
from flettner.vllm_facts.launch_files.shell_variables import expand_words
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.shell_command.docker_run import explain_entry, image_version, is_vllm_image

_NAME = re.compile(r"(^|/)(Dockerfile|Containerfile)[\w.-]*$|\.[Dd]ockerfile$")
_FROM = re.compile(r"^FROM[ \t]+\S", re.MULTILINE | re.IGNORECASE)
_INSTRUCTION = re.compile(r"[ \t]{0,200}([A-Za-z]{1,20})[ \t]+")
_CONTINUES = re.compile(r"\\[ \t]*$")
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*[\"']?(?P<end>[A-Za-z_]\w{0,60})[\"']?")
_TAKES_DOCUMENT = frozenset({"RUN", "COPY", "ADD"})
_SCRIPT = re.compile(r"\.(?:ba|z|k)?sh$|entrypoint[\w.-]{0,40}$")
_ITEM = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instruction:
    """`NAME text[start:end]`, continued lines included."""

    name: str
    start: int
    end: int


def is_dockerfile(name: str, text: str) -> bool:
    return _NAME.search(name) is not None and _FROM.search(text) is not None


def read_dockerfile(text: str) -> list[Launch]:
    """The server of the last stage, by its base image, ENTRYPOINT and CMD. Raises FlagError."""
    stages: dict[str, str] = {}
    files = _CopiedFiles()
    image, env = "", dict[str, Variable]()
    entry, own, place = list[Word](), list[Word](), 0
    cleared = False
    for each in _instructions(text):
        words = text[each.start : each.end].split()
        if each.name == "FROM":
            named = [word for word in words if not word.startswith("--")]
            image = stages.get(named[0], named[0]) if named else ""
            if len(named) > 2 and named[1].lower() == "as":  # noqa: PLR2004 - FROM IMAGE AS NAME
                stages[named[2]] = image
            entry, own, env, cleared, files = [], [], {}, False, _CopiedFiles()
        elif each.name in ("WORKDIR", "COPY", "ADD"):
            files.add(each.name, words)
        elif each.name == "ENV":
            env |= _read_variables(text, each)
        elif each.name in ("ENTRYPOINT", "CMD"):
            read, place = _words(text, each), each.start
            if each.name == "CMD":
                own = read
            else:
                entry, own, cleared = read, [], True
    shell = not cleared and bool(own) and own[0].form == "shell" and is_vllm_image(image)
    fault = explain_entry(image, "/bin/sh") if shell else None
    if own and own[0].form == "shell":
        own = expand_words(text, own, env)
    base = "" if shell or (cleared and not entry) else image
    launches = read_container(text, base, entry, own, place, env)
    version = image_version(image)
    if all(launch.problem for launch in launches) and (script := files.find((*entry, *own))):
        problem = f"{script} starts the server, and its flags are unknown"
        launches = [Launch(name="", start=place, problem=problem, script=script, bypassed_image=image)]
    launches = [
        replace(launch, env={**env, **launch.env}, version=version, entry_fault=fault or launch.entry_fault)
        for launch in launches
    ]
    return with_installed_release(launches, text)


@dataclass(slots=True)
class _CopiedFiles:
    """The files of the build's folder in the image, by their paths there."""

    folder: str = "/"
    sources: dict[str, str] = field(default_factory=dict)

    def add(self, instruction: str, words: Sequence[str]) -> None:
        if instruction == "WORKDIR":
            self.folder = join(self.folder, *words[:1])
            return
        if any(word.startswith(("--from", "[", "<<")) for word in words):
            return
        *sources, target = [word for word in words if not word.startswith("--")] or [""]
        for source in sources:
            inside = len(sources) > 1 or target.endswith("/") or target in {".", ".."}
            path = join(self.folder, target, basename(source)) if inside else join(self.folder, target)
            self.sources[normpath(path)] = source

    def find(self, words: Sequence[Word]) -> str:
        """The file that a command starts, directly or by a shell; "" for none of them."""
        given = [word.text for word in words if not word.text.startswith("-")]
        if given and given[0].rpartition("/")[2] in SHELLS:
            given = given[1:]
        path = normpath(join(self.folder, given[0])) if given else ""
        return self.sources.get(path, "") if _SCRIPT.search(path) else ""


def _words(text: str, each: _Instruction) -> list[Word]:
    """The words of the list, or those that a shell reads."""
    inner = text[each.start : each.end].strip()
    if not inner.startswith("["):
        commands = split_commands(text, each.start, each.end, lines=False)
        return [word for command in commands for word in command]
    return [
        Word(text=json.loads(item[0]), start=item.start(), end=item.end(), form="flow")
        for item in _ITEM.finditer(text, each.start, each.end)
    ]


def _read_variables(text: str, each: _Instruction) -> dict[str, Variable]:
    try:
        words = [word for part in split_commands(text, each.start, each.end, lines=False) for word in part]
    except FlagError as error:
        raise FlagError(f"ENV cannot be read: {error}") from error
    if words and "=" not in words[0].text:  # ENV NAME value
        value = " ".join(word.text for word in words[1:])
        return {words[0].text: Variable(value=value, start=words[0].start)}
    pairs: Sequence[tuple[Word, tuple[str, str, str]]] = [(word, word.text.partition("=")) for word in words]
    return {name: Variable(value=value, start=word.start) for word, (name, equals, value) in pairs if equals}


def _instructions(text: str) -> Iterator[_Instruction]:
    at = 0
    while at < len(text):
        end = _line_end(text, at)
        match = _INSTRUCTION.match(text, at, end)
        if match and not text[at:end].lstrip().startswith("#"):
            line = text[at:end]
            while end < len(text) and (_CONTINUES.search(line) or line.lstrip().startswith("#")):
                begin, end = end + 1, _line_end(text, end + 1)
                line = text[begin:end]
            yield _Instruction(name=match[1].upper(), start=match.end(), end=end)
            if match[1].upper() in _TAKES_DOCUMENT:
                end = _after_documents(text, match.end(), end)
        at = end + 1


def _after_documents(text: str, start: int, end: int) -> int:
    """The end of the here-documents that begin in text[start:end]; `end` if they never end."""
    at = end
    for document in _HERE_DOCUMENT.finditer(text, start, end):
        closing = next(
            (line for line in _lines_after(text, at) if text[slice(*line)].strip() == document["end"]), None
        )
        if closing is None:
            return end
        at = closing[1]
    return at


def _lines_after(text: str, at: int) -> Iterator[tuple[int, int]]:
    while at < len(text):
        begin, at = at + 1, _line_end(text, at + 1)
        yield begin, at


def _line_end(text: str, at: int) -> int:
    place = text.find("\n", at)
    return len(text) if place < 0 else place
