"""Shell scripts: the commands that start vLLM, with the variables that the script itself sets.

An expansion of unknown value in the place of a flag is reported as unread.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import SHELLS, WORKER_MODULE, WRAPPERS, names_engine, starts_engine
from flettner.vllm_facts.launch_files.launch import Launch, Word, line_of
from flettner.vllm_facts.launch_files.shell_branches import (
    CLOSES,
    OPENS,
    find_agreements,
    is_conditional,
    without_reserved,
)
from flettner.vllm_facts.launch_files.shell_variables import (
    Expansion,
    Variables,
    drop_unknown_flags,
    explain_defaults,
    name_of_variable,
)
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.serve_config import EntryFault
from flettner.vllm_facts.shell_command.docker_run import CONTAINERS, STARTS, runs_server, script_place
from flettner.vllm_facts.shell_command.shell import ASSIGNMENT

_LONE_OPERATOR = re.compile(r"[^\n\\;&|]{0,300}\n(?:[ \t]*\n){0,9}[ \t]*(?P<operator>&&?|\|\|?)(?![&|;])")
_CUT = re.compile(r"\\[ \t]{1,200}\r?\n")
_SILENT = frozenset({"echo", "printf", "pgrep", "pkill", "grep", "which", "type", "alias", "trap", "kill"})


def read_script(
    text: str,
    *,
    start: int = 0,
    end: int | None = None,
    lines: bool = True,
    env: Mapping[str, str] = {},
    arguments: Sequence[Word] = (),
) -> list[Launch]:
    """The servers that the commands between `start` and `end` start. Raises FlagError.

    `env`: variables that are set outside. `arguments`: the words that the script gets.
    """
    variables, starts = _follow_commands(text, split_commands(text, start, end, lines=lines), env)
    variables.arrays |= {"@": tuple(arguments), "*": tuple(arguments)} if arguments else {}
    launches: list[Launch] = []
    ray = any(map(_starts_ray, starts))
    for words in starts:
        if words[0].text.startswith("--") and launches:
            lost, fault = _explain_lost_flag(text, words[0]), launches[-1].entry_fault
            launches[-1] = replace(launches[-1], entry_fault=fault.together(lost) if fault else lost)
        faults = (_explain_lone_operator(text, words[-1], end), _explain_cut(text, words)) if lines else ()
        found = next(filter(None, faults), None)
        launches += [
            replace(launch, entry_fault=found or launch.entry_fault)
            for launch in _read_command(text, words, variables)
        ]
    launches += _read_arrays(text, variables, launches)
    return [replace(launch, ray=True) for launch in launches] if ray else launches


def _read_arrays(text: str, variables: Variables, known: Sequence[Launch]) -> Iterable[Launch]:
    """The commands in arrays that the script uses elsewhere than as a plain command: `ID=$("${RUN[@]}")`."""
    read = {word.start for launch in known for word in launch.words if word.end}
    for name, items in variables.arrays.items():
        starts = starts_vllm([item.text for item in items])
        if not starts or items[0].start in read or f"${{{name}[@]}}" not in text:
            continue
        whole = Word(text=f"${{{name}[@]}}", start=items[0].start, end=items[0].end, form="shell", live=True)
        yield from _read_command(text, (whole,), variables)


def find_literals(text: str) -> Mapping[str, str]:
    """The variables that the script sets to literal values. Raises FlagError."""
    return _follow_commands(text, split_commands(text), {})[0].literals


def _follow_commands(
    text: str, commands: Iterable[Sequence[Word]], env: Mapping[str, str]
) -> tuple[Variables, list[tuple[Word, ...]]]:
    """The variables after all commands, and the commands that do more than to set some."""
    variables = Variables(values={name: Word(text=value) for name, value in env.items()}, outside=set(env))
    depth, before = 0, tuple[Word, ...]()
    starts: list[tuple[Word, ...]] = []
    commands = list(commands)
    agreements = find_agreements(text, commands)
    for at, command in enumerate(commands):
        first = command[0].text
        depth = max(0, depth + (first in OPENS) - (first in CLOSES))
        if first == "for" and len(command) > 1:
            variables.unknown.add(command[1].text)
        words = without_reserved(command)
        sure = depth == 0 and not is_conditional(text, before, command)
        if not variables.assign_all(words, sure=sure, text=text):
            starts.append(words)
        for agreed in agreements.get(at, ()):
            variables.settle(agreed, text)
        before = tuple(command)
    return variables, starts


def _starts_ray(words: Sequence[Word]) -> bool:
    """Whether the command makes a Ray cluster: `ray start --head`, or vLLM's script for the leader."""
    texts = [word.text for word in words]
    return (any(text.rpartition("/")[2] == "ray" for text in texts[:-1]) and "start" in texts) or joins_ray(
        texts
    )


def joins_ray(texts: Sequence[str]) -> bool:
    """Whether the command is vLLM's multi-node-serving.sh."""
    return any(text.rpartition("/")[2].endswith("multi-node-serving.sh") for text in texts)


def _explain_lost_flag(text: str, word: Word) -> EntryFault:
    line = line_of(text, word.start)
    why = f"line {line}: {word.text} is not a flag of the server: a comment or a missing \\ ends its command"
    return EntryFault(f"{why} before, and the server runs without what follows", of="cut")


def _explain_cut(text: str, words: Sequence[Word]) -> EntryFault | None:
    """Why a shell ends the command between its words: a blank behind the mark of a continued line."""
    for word, following in pairwise(words):
        if word.end <= following.start and _CUT.search(text, word.end, following.start):
            return EntryFault(
                f"line {line_of(text, word.end)} has a blank behind its \\: the command ends there, and the "
                f"server runs without {following.text} and what follows",
                of="cut",
            )
    return None


def _explain_lone_operator(text: str, last: Word, end: int | None) -> EntryFault | None:
    """Why the command behind whose last word a line begins with `&` or `|` does not run; None for others."""
    lone = _LONE_OPERATOR.match(text, last.end, len(text) if end is None else end) if last.end else None
    if lone is None:
        return None
    begins = f"line {line_of(text, lone.start('operator'))} begins with `{lone['operator']}`"
    return EntryFault(
        f"{begins}, as the line before has no \\ at its end: a shell ends there with a syntax error",
        of="line",
    )


def _read_command(text: str, words: Sequence[Word], variables: Variables) -> Iterable[Launch]:
    program = _program(words)
    if program in _SILENT:
        return
    if program in SHELLS:
        yield from _read_inner(text, words, variables)
        return
    if program == "eval":
        words = [word for word in words if word.text != "eval"]
        if any(" " in word.text.strip() for word in words):
            yield from _read_evaluated(text, words, variables)
            return
    if whole := _find_unknown_command(words, variables):
        named = _name_program(words, whole, variables)
        if named:
            words, whole = named, None
    if whole:
        problem = f"{whole.text} is put together from several values: lint the command that it becomes"
        yield Launch(name="", start=whole.start, problem=problem)
        return
    expansion = Expansion(variables, text)
    for word in words:
        expansion.add(word)
    inside, unread = _without_unknown_flags(text, expansion.words)
    expanded = _without_expansions(inside)
    texts = [word.text for word in expanded]
    if not starts_vllm(texts):
        return
    remarks = explain_defaults(text, [*expansion.words, *expansion.used])
    yield Launch(
        name="",
        start=words[0].start,
        words=tuple(expanded),
        env={} if "sudo" in texts else dict(variables.exported),
        unread=(*expansion.unread, *unread),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _without_unknown_flags(text: str, words: Sequence[Word]) -> tuple[list[Word], list[str]]:
    """The words of `docker run … bash -c "…"` without variables in the place of a flag, in the script."""
    rest, unread = list(words), list[str]()
    if not CONTAINERS.intersection(word.text.rpartition("/")[2] for word in words):
        return rest, unread
    for at, word in enumerate(words):
        hidden = _find_unknown_flags(word.text)
        for name in hidden:
            unread.append(f"line {line_of(text, word.start)}: the flags in {name} are unknown")
        if hidden:
            names = "|".join(map(re.escape, hidden))
            rest[at] = replace(word, text=re.sub(rf"(?<=\s)(?:{names})(?=\s|$)", "", word.text), form="none")
    return rest, unread


def _find_unknown_flags(script: str) -> list[str]:
    """The variables in the place of a flag of a script's server."""
    if "vllm serve" not in script or "$" not in script:
        return []
    with suppress(FlagError):
        return [
            word.text
            for command in split_commands(script)
            for kept in [set(drop_unknown_flags(script, command)[0])]
            for word in dict.fromkeys(command)
            if word not in kept
        ]
    return []


def _without_expansions(words: Sequence[Word]) -> Sequence[Word]:
    """Without variables before the program, which hold assignments or nothing: `env $MORE vllm serve`."""
    at = next((at for at, word in enumerate(words) if not _passes(word)), len(words))
    if at and at < len(words) and words[at].text in ("-m", "serve"):
        at -= 1  # the variable is the program
    kept = [word for word in words[:at] if not name_of_variable(word)]
    rest = list(words[at:])
    return [*kept, *rest] if len(kept) < at and starts_vllm([word.text for word in rest]) else words


def _passes(word: Word) -> bool:
    return bool(name_of_variable(word) or ASSIGNMENT.match(word.text)) or word.text in WRAPPERS


def _name_program(words: Sequence[Word], program: Word, variables: Variables) -> tuple[Word, ...]:
    """The words with `vllm` for a program of which only the path is unknown: `"$BIN" serve`."""
    at = list(words).index(program)
    rest = list(words[at + 1 :])
    name = name_of_variable(rest[0]) if rest else ""
    if name in variables.arrays and name not in variables.unknown:
        rest = [*variables.arrays[name], *rest[1:]]
    if not rest or rest[0].text != "serve":
        return ()
    return (*words[:at], replace(program, text="vllm", form="none", live=False), *words[at + 1 :])


def _find_unknown_command(words: Sequence[Word], variables: Variables) -> Word | None:
    """The variable that stands for the program and holds a command for vLLM with unknown parts."""
    passed = (word for word in words if not ASSIGNMENT.match(word.text) and word.text not in WRAPPERS)
    first = next(passed, None)
    names = variables.commands & variables.unknown
    return first if first is not None and name_of_variable(first) in names else None


def _program(words: Sequence[Word]) -> str:
    texts = [word.text.rpartition("/")[2] for word in words if not ASSIGNMENT.match(word.text)]
    return next((text for text in texts if text not in WRAPPERS and not text.startswith("-")), "")


def starts_vllm(texts: Sequence[str]) -> bool:
    given = [text for text in texts if not ASSIGNMENT.match(text)]
    plain = [text.rpartition("/")[2] for text in given]
    if CONTAINERS.intersection(plain) and (start := next(iter(STARTS.intersection(given)), "")):
        inner = given[given.index(start) :]
        ours = ("vllm", "serve") in pairwise(plain) or ("-m", WORKER_MODULE) in pairwise(inner)
        return runs_server(given) or ours
    if "vllm" in plain and names_engine(plain, plain.index("vllm")):
        return False
    return starts_engine(given) or ("vllm", "serve") in pairwise(plain)


def _read_inner(text: str, words: Sequence[Word], variables: Variables) -> Iterable[Launch]:
    """`bash -c "…"`: the commands inside, with their places if the quotes hold them unchanged."""
    place = script_place([word.text for word in words])
    script = words[place] if place is not None else None
    if script is None or "vllm" not in script.text:
        return
    values = variables.literals
    inner = text[script.start + 1 : max(script.start + 1, script.end - 1)]
    if inner == script.text:
        launches = read_script(text, start=script.start + 1, end=script.end - 1, env=values)
    else:
        launches = [
            replace(launch, start=words[0].start, words=without_places(launch.words))
            for launch in read_script(script.text, env=values)
        ]
    yield from (replace(launch, env={**variables.exported, **launch.env}) for launch in launches)


def _read_evaluated(text: str, words: Sequence[Word], variables: Variables) -> Iterable[Launch]:
    """`eval "…"`: the shell joins the words, and reads what that gives once more."""
    line = f"line {line_of(text, words[0].start)}"
    for launch in read_script(" ".join(word.text for word in words), env=variables.literals):
        yield replace(
            launch,
            start=words[0].start,
            words=without_places(launch.words),
            env={**variables.exported, **launch.env},
            unread=tuple(re.sub(r"^line \d+", line, each) for each in launch.unread),
            remarks=tuple(re.sub(r"^line \d+", line, each) for each in launch.remarks),
        )


def without_places(words: Iterable[Word]) -> tuple[Word, ...]:
    return tuple(replace(word, start=0, end=0, form="none") for word in words)
