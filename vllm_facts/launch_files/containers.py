"""The server that a container starts, from its image, entrypoint and arguments."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import SHELLS, WORKER_MODULE, starts_engine
from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word
from flettner.vllm_facts.launch_files.shell_script import read_script, without_places
from flettner.vllm_facts.launch_files.shell_variables import (
    drop_unknown_flags,
    plain_values,
    replace_defaults,
)
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.launch_files.templates import without_hidden
from flettner.vllm_facts.launch_files.yaml_nodes import SCALAR, Node, inner_place, list_words, word_of
from flettner.vllm_facts.serve_config import EntryFault
from flettner.vllm_facts.shell_command.docker_run import (
    are_server_flags,
    explain_entry,
    image_version,
    implied_words,
    is_vllm_image,
    script_place,
)


def read_container(
    text: str,
    image: str,
    entry: Sequence[Word],
    own: Sequence[Word],
    start: int,
    env: Mapping[str, Variable] = {},
    *,
    cleared: bool = False,
) -> list[Launch]:
    """The servers of a container; empty if it does not start vLLM. Raises FlagError.

    `env`: the variables that its shells get. `cleared`: the file takes the image's own entrypoint away and
    puts nothing in its place.
    """
    image = without_hidden(image)
    words = (*entry, *own)
    program = words[0].text.rpartition("/")[2] if words else ""
    implied_entry = not entry and not cleared
    if program in SHELLS:
        fault = explain_entry(image, program) if implied_entry else None
        launches = _read_cut_script(text, image, words, start)
        values = _plain_values(env)
        launches = launches or [
            replace(launch, entry_fault=fault) for launch in _read_shell(text, words, values)
        ]
        if not launches and (_starts_server(words) or (is_vllm_image(image) and _runs_script(words))):
            problem = f"{program} starts the server: its flags cannot be told from the script's"
            launches = [Launch(name="", start=start, problem=problem)]
    elif implied_entry and len(own) == 1 and f"-m {WORKER_MODULE} " in own[0].text:
        # Dynamo's operator starts the one word by a shell
        launches = read_inline(text, own[0], _plain_values(env))
    elif implied_entry and is_vllm_image(image):
        implied = tuple(Word(text=word) for word in implied_words(image))
        launches = [Launch(name="", start=start, words=(*implied, *own))]
    elif starts_engine([word.text for word in words]):
        launches = [Launch(name="", start=words[0].start or start, words=words)]
    elif own and own[0].text == "serve" and "vllm" in image.rpartition("/")[2]:
        launches = [Launch(name="", start=start, words=(Word(text="vllm"), *own))]
    elif (
        implied_entry
        and (not image or "vllm" in image.rpartition("/")[2])
        and are_server_flags([word.text for word in own])
    ):
        launches = [Launch(name="", start=start, words=(Word(text="vllm"), Word(text="serve"), *own))]
    elif entry and " " in entry[0].text and (commands := split_commands(entry[0].text)):
        parts = without_places((*commands[0], *entry[1:]))
        fault = EntryFault(
            f"`{parts[0].text} …` is one word with spaces: no program of the container has that name"
        )
        launches = read_container(text, image, parts, own, start, env)
        launches = [replace(launch, entry_fault=fault) for launch in launches]
    elif is_vllm_image(image) and program not in _WAITS:
        problem = f"{program} starts the server, and its flags are unknown"
        launches = [Launch(name="", start=start, problem=problem)]
    else:
        launches = []
    bypassed = "" if implied_entry else image
    return [replace(_complete(text, launch, image), bypassed_image=bypassed) for launch in launches]


def _plain_values(env: Mapping[str, Variable]) -> dict[str, str]:
    """The variables whose values, or their defaults, stand in the file."""
    return plain_values(
        {name: replace(each, value=replace_defaults(each.value)) for name, each in env.items()}
    )


_WAITS = frozenset({"sleep", "tail"})
_SERVES = re.compile(
    r"\bvllm\W{1,9}serve\b|\bapi_server\b|\b(vllm\.entrypoints|dynamo\.vllm)\b|vllm[\w-]{0,60}\.(sh|py)\b"
)
"""In a script: how a server is named. `vllm bench`, an installation and a name of a metric are none."""
_USES_ARGUMENTS = re.compile(r"\$\{?[@*#\d]")
_SCRIPT = re.compile(r"/[\w.-]{1,80}\.sh\b")
_JOINED = re.compile(r"(?<!\S)\S{0,300}multi-node-serving\.sh")
_JOINS = re.compile(r"\bray\s+start\b|multi-node-serving\.sh\s+(worker|leader)\b")


def _starts_server(words: Sequence[Word]) -> bool:
    """Whether the script starts vLLM's server, other than to join the cluster of another container."""
    script = " ".join(word.text for word in words[1:])
    return bool(_SERVES.search(_JOINED.sub("", script))) and not _JOINS.search(script)


def _runs_script(words: Sequence[Word]) -> bool:
    """Whether the shell runs a script, other than to join the cluster of another container."""
    script = " ".join(word.text for word in words[1:])
    return bool(_SCRIPT.search(_JOINED.sub("", script))) and not _JOINS.search(script)


def _complete(text: str, launch: Launch, image: str) -> Launch:
    words, unread = drop_unknown_flags(text, launch.words)
    unread = [*launch.unread, *unread]
    return replace(launch, words=tuple(words), unread=tuple(unread), version=image_version(image))


def _read_shell(text: str, words: Sequence[Word], env: Mapping[str, str]) -> list[Launch]:
    """`sh -c SCRIPT`, or a shell as the entrypoint of a script."""
    place = script_place([word.text for word in words])
    script = words[place] if place is not None else words[-1] if len(words) > 1 else None
    if script is None or "vllm" not in script.text:
        return []
    given = words[place + 2 :] if place is not None else ()  # the word after the script is its name
    return read_inline(text, script, env, given)


def _read_cut_script(text: str, image: str, words: Sequence[Word], start: int) -> list[Launch]:
    """`sh -c vllm serve MODEL`: the command as it is meant, of which the shell runs the first word alone."""
    place = script_place([word.text for word in words])
    if place is None or _USES_ARGUMENTS.search(words[place].text):
        return []
    script, rest = words[place], words[place + 1 :]
    commands = split_commands(script.text)
    if len(commands) != 1 or not any(word.text.startswith("--") and word.text != "--" for word in rest):
        return []
    meant = without_places((*commands[0], *rest))
    if not starts_engine([word.text for word in meant]):
        return []
    fault = EntryFault(
        f"{words[0].text} -c runs the one word behind it, {script.text!r}; {rest[0].text!r} and what follows "
        "are arguments of the shell, which that script does not use"
    )
    return [replace(launch, entry_fault=fault) for launch in read_container(text, image, meant, (), start)]


def read_inline(
    text: str, script: Word, env: Mapping[str, str], arguments: Sequence[Word] = ()
) -> list[Launch]:
    """The servers of a script that is a word or a scalar of the file. Raises FlagError."""
    read = partial(read_script, env=env, arguments=arguments)
    inner = text[script.start : script.end]
    for offset in (0, 1):
        if inner[offset : len(inner) - offset] == script.text and script.form != "none":
            return read(text, start=script.start + offset, end=script.end - offset)
    launches = _read_folded(text, script, read)
    return launches or [
        replace(launch, start=script.start, words=_without_places(launch.words, arguments))
        for launch in read(script.text)
    ]


def _without_places(words: Sequence[Word], arguments: Sequence[Word]) -> tuple[Word, ...]:
    """Only the arguments of the script stand in the text."""
    return tuple(word if word in arguments else without_places([word])[0] for word in words)


def _read_folded(text: str, script: Word, read: Callable[..., list[Launch]]) -> list[Launch]:
    """A script in a block scalar or over several lines, if it holds the same words in the text."""
    start, end, lines = inner_place(text, script.start, script.end)
    try:
        placed = read(text, start=start, end=end, lines=lines)
    except FlagError:
        return []
    plain = read(script.text)
    same = [[word.text for word in launch.words] for launch in placed] == [
        [word.text for word in launch.words] for launch in plain
    ]
    return placed if same else []


def command_words(text: str, node: Node | None, *, splits: bool) -> list[Word]:
    """The words of `command`, `args` or `entrypoint`: a list, or a string that is split as a shell does.

    `splits`: whether a string is split; Kubernetes takes lists only. Raises FlagError.
    """
    if node is None or node.id != SCALAR:
        return list_words(node)
    if not splits:
        return [word_of(node, "flow")]
    start, end, _ = inner_place(text, node.start_mark.index, node.end_mark.index)
    commands = split_commands(str(node.value), lines=False)
    plain = [word for command in commands for word in command]
    try:
        placed = [word for command in split_commands(text, start, end, lines=False) for word in command]
    except FlagError:
        placed = []
    if [word.text for word in placed] == [word.text for word in plain]:
        return placed
    return list(without_places(plain))
