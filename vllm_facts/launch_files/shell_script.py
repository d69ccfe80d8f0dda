"""Shell scripts: the commands that start vLLM, with the variables that the script itself sets.

A variable is used if it is set once, outside of any condition, to a literal value. Every other expansion in
the place of a flag is reported as unread.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from vllm_facts.flag_parser import SHELLS, WRAPPERS, is_vllm_server
from vllm_facts.flag_table import is_switch
from vllm_facts.launch_files.launch import Launch, Variable, Word, line_of
from vllm_facts.launch_files.shell_words import entry_place, split_commands
from vllm_facts.shell_command.docker_run import CONTAINERS, is_vllm_image
from vllm_facts.shell_command.shell import ASSIGNMENT

_OPENS, _CLOSES = frozenset({"if", "for", "while", "until", "case", "select"}), {"fi", "done", "esac"}
_RESERVED = frozenset({"if", "then", "else", "elif", "do", "while", "until", "{", "}", "!", "time"})
_SETS = frozenset({"export", "readonly", "declare", "typeset", "local"})
_SILENT = frozenset({"echo", "printf", "pgrep", "pkill", "grep", "which", "type", "alias", "trap", "kill"})
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_WHOLE = re.compile(r"\$(?:\{(\w+)(\[[@*]\])?\}|(\w+)|[@*])")


@dataclass(slots=True)
class _Variables:
    """The literal values that a script sets, the arrays, and the names whose value is unknown."""

    values: dict[str, Word] = field(default_factory=dict)
    arrays: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    exported: dict[str, Variable] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def assign(self, word: Word, *, sure: bool, exported: bool, whole: tuple[int, int]) -> None:
        name, _, value = word.text.partition("=")
        appends, name = name.endswith("+"), name.rstrip("+")
        again = name in self.values or name in self.arrays
        is_array = word.text.endswith("=") and (word.items or word.live)
        if appends or again or not sure or (word.live and not is_array):
            self.unknown.add(name)
        if is_array:
            self.arrays[name] = word.items
        else:
            self.values[name] = replace(word, text=value)
        if exported:
            self.exported[name] = Variable(value=value, start=word.start, whole=whole)

    def value(self, name: str) -> str | None:
        word = self.values.get(name)
        return None if word is None or name in self.unknown else word.text


def read_script(
    text: str, *, start: int = 0, end: int | None = None, lines: bool = True, env: Mapping[str, str] = {}
) -> list[Launch]:
    """The servers that the commands between `start` and `end` start. Raises FlagError.

    `env`: variables that are set outside.
    """
    variables = _Variables(values={name: Word(text=value) for name, value in env.items()})
    commands = split_commands(text, start, end, lines=lines)
    depth = 0
    starts: list[tuple[Word, ...]] = []
    for command in commands:
        first = command[0].text
        depth = max(0, depth + (first in _OPENS) - (first in _CLOSES))
        if first == "for" and len(command) > 1:
            variables.unknown.add(command[1].text)
        words = _after_reserved(command)
        if not _assign_all(words, variables, sure=depth == 0, text=text):
            starts.append(words)
    return [launch for words in starts for launch in _read_command(text, words, variables)]


def _after_reserved(command: Sequence[Word]) -> tuple[Word, ...]:
    at = 0
    while at < len(command) and command[at].text in _RESERVED:
        at += 1
    return tuple(command[at:])


def _assign_all(words: Sequence[Word], variables: _Variables, *, sure: bool, text: str) -> bool:
    """Take over the variables of a command that only sets some; False for any other command."""
    if not words:
        return True
    sets = words[0].text in _SETS
    given = [word for word in words[1:] if not word.text.startswith("-")] if sets else list(words)
    if not sets and not all(_is_assignment(word) for word in given):
        return False
    line = text.rfind("\n", 0, words[0].start) + 1
    for at, word in enumerate(given):
        if _is_assignment(word):
            whole = entry_place(text, given, at, line)
            exports = words[0].text == "export"
            variables.assign(word, sure=sure, exported=exports, whole=whole)
        elif words[0].text == "export" and (value := variables.value(word.text)) is not None:
            variables.exported[word.text] = Variable(value=value, start=word.start)
    return True


def _is_assignment(word: Word) -> bool:
    return ASSIGNMENT.match(word.text.replace("+=", "=", 1)) is not None


def _read_command(text: str, words: Sequence[Word], variables: _Variables) -> Iterable[Launch]:
    program = _program(words)
    if program in _SILENT:
        return
    if program in SHELLS:
        yield from _read_inner(text, words, variables)
        return
    expanded, unread = _expand(words, variables, text)
    texts = [word.text for word in expanded]
    if program.startswith("-") and any("vllm" in word.text for word in words):
        return
    if _starts_vllm(texts):
        env = {
            name: variable
            for name, variable in variables.exported.items()
            if name not in variables.unknown and not ("sudo" in texts and name)
        }
        yield Launch(name="", start=words[0].start, words=tuple(expanded), env=env, unread=tuple(unread))


def _program(words: Sequence[Word]) -> str:
    texts = [word.text.rpartition("/")[2] for word in words if not ASSIGNMENT.match(word.text)]
    return next((text for text in texts if text not in WRAPPERS and not text.startswith("-")), "")


def _starts_vllm(texts: Sequence[str]) -> bool:
    given = [text for text in texts if not ASSIGNMENT.match(text)]
    if any(text in CONTAINERS for text in given) and "run" in given:
        return any(map(is_vllm_image, given)) or ("vllm", "serve") in pairwise(given)
    plain = [text.rpartition("/")[2] for text in given]
    return is_vllm_server(given) or ("vllm", "serve") in pairwise(plain)


def _read_inner(text: str, words: Sequence[Word], variables: _Variables) -> Iterable[Launch]:
    """`bash -c "…"`: the commands inside, with their places if the quotes hold them unchanged."""
    script = next(
        (word for at, word in enumerate(words[1:]) if words[at].text.lstrip("-").endswith("c")), None
    )
    if script is None or "vllm" not in script.text:
        return
    known = {name: word.text for name, word in variables.values.items() if name not in variables.unknown}
    inner = text[script.start + 1 : max(script.start + 1, script.end - 1)]
    if inner == script.text:
        found = read_script(text, start=script.start + 1, end=script.end - 1, env=known)
    else:
        found = [
            replace(launch, start=words[0].start, words=without_places(launch.words))
            for launch in read_script(script.text, env=known)
        ]
    yield from (replace(launch, env={**variables.exported, **launch.env}) for launch in found)


def without_places(words: Iterable[Word]) -> tuple[Word, ...]:
    return tuple(replace(word, start=0, end=0, form="none") for word in words)


def _expand(words: Sequence[Word], variables: _Variables, text: str) -> tuple[list[Word], list[str]]:
    """The words with known variables replaced, and what could not be read."""
    expanded: list[Word] = []
    unread: list[str] = []
    for word in words:
        raw = text[word.start : word.end]
        whole = _WHOLE.fullmatch(word.text) if word.live else None
        name = (whole[1] or whole[3] or "") if whole else ""
        if whole and name in variables.arrays and name not in variables.unknown:
            inner, hidden = _expand(variables.arrays[name], variables, text)
            expanded += inner
            unread += hidden
        elif whole and (value := variables.value(name)) is not None and not raw.startswith('"'):
            parts = value.split()
            expanded += (
                [replace(word, text=value)] if len(parts) == 1 else [Word(text=part) for part in parts]
            )
        elif not word.live:
            expanded.append(word)
        elif (whole or word.text.startswith(("$(", "`"))) and _is_place_of_flag(expanded):
            unread.append(f"line {line_of(text, word.start)}: the flags in {word.text} are unknown")
        else:
            expanded.append(replace(word, text=_replace_known(word.text, variables)))
    return expanded, unread


def _is_place_of_flag(before: Sequence[Word]) -> bool:
    """Whether the next word is a flag, rather than a flag's value, the model or the program."""
    last = before[-1].text if before else "serve"
    if last.startswith("-"):
        return "=" in last or last.startswith("--no-") or is_switch(last.lstrip("-").replace("-", "_"))
    return any(word.text == "serve" or word.text.startswith("vllm.entrypoints") for word in before) and (
        last != "serve"
    )


def _replace_known(text: str, variables: _Variables) -> str:
    def known(found: re.Match[str]) -> str:
        value = variables.value(found[1] or found[2])
        return found[0] if value is None else value

    return _REFERENCE.sub(known, text)
