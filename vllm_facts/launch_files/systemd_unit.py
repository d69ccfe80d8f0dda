"""systemd units and podman quadlets: their commands, and the variables of `Environment=`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.containers import read_container
from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word, line_of
from flettner.vllm_facts.launch_files.shell_script import read_script
from flettner.vllm_facts.launch_files.shell_words import entry_place, split_commands

_CONTINUES = re.compile(r"\\[ \t]*$")
_PREFIXES = "-@:+!|"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """`key=value`, where the value is text[start:end], continued lines included."""

    key: str
    begin: int  # of its line
    start: int
    end: int


def read_unit(text: str) -> list[Launch]:
    """The servers of a unit. Raises FlagError."""
    entries = list(_entries(text))
    env: dict[str, Variable] = {}
    remarks: list[str] = []
    for entry in entries:
        if entry.key == "Environment":
            env |= _read_environment(text, entry)
        elif entry.key == "EnvironmentFile":
            path = text[entry.start : entry.end].strip()
            remarks.append(
                f"line {line_of(text, entry.start)}: the variables in {path.lstrip('-')} are not read"
            )
    launches: list[Launch] = []
    for entry in entries:
        if entry.key == "ExecStart" and text[entry.start : entry.end].strip():
            start = (
                entry.start
                + len(text[entry.start : entry.end])
                - len(text[entry.start : entry.end].lstrip(_PREFIXES))
            )
            values = {name: variable.value for name, variable in env.items()}
            launches += read_script(text, start=start, end=entry.end, lines=False, env=values)
    return [
        replace(
            launch,
            name="ExecStart",
            env={**env, **launch.env},
            together="units",
            remarks=(*remarks, *launch.remarks),
        )
        for launch in launches
    ]


def read_quadlet(text: str) -> list[Launch]:
    """The server of podman's `.container` unit. Raises FlagError."""
    env: dict[str, Variable] = {}
    remarks: list[str] = []
    parts: dict[str, list[Word]] = {"Exec": [], "Entrypoint": []}
    image, start = "", 0
    for entry in _entries(text, "[Container]"):
        if entry.key == "Environment":
            env |= _read_environment(text, entry)
        elif entry.key == "EnvironmentFile":
            path = text[entry.start : entry.end].strip()
            remarks.append(f"line {line_of(text, entry.start)}: the variables in {path} are not read")
        elif entry.key == "Image":
            image, start = text[entry.start : entry.end].strip(), start or entry.start
        elif entry.key in parts:
            commands = split_commands(text, entry.start, entry.end, lines=False)
            parts[entry.key] = [word for command in commands for word in command]
            start = entry.start
    launches = read_container(text, image, parts["Entrypoint"], parts["Exec"], start, env)
    return [
        replace(launch, name="Exec", env={**env, **launch.env}, remarks=(*remarks, *launch.remarks))
        for launch in launches
    ]


def _entries(text: str, wanted: str = "[Service]") -> Iterator[_Entry]:
    at, section = 0, ""
    while at < len(text):
        end = _line_end(text, at)
        line = text[at:end]
        if line.strip().startswith("["):
            section = line.strip()
        elif section == wanted and "=" in line and not line.lstrip().startswith(("#", ";")):
            key, _, value = line.partition("=")
            begin, start = at, at + len(key) + 1
            start += len(value) - len(value.lstrip())
            while end < len(text) and (_CONTINUES.search(line) or line.lstrip().startswith(("#", ";"))):
                at = end + 1  # a comment between continued lines is skipped
                end = _line_end(text, at)
                line = text[at:end]
            yield _Entry(key=key.strip(), begin=begin, start=start, end=end)
        at = end + 1


def _line_end(text: str, at: int) -> int:
    place = text.find("\n", at)
    return len(text) if place < 0 else place


def _read_environment(text: str, entry: _Entry) -> dict[str, Variable]:
    try:
        words = [
            word for command in split_commands(text, entry.start, entry.end, lines=False) for word in command
        ]
    except FlagError as error:
        raise FlagError(f"Environment= cannot be read: {error}") from error
    given = {}
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if equals:
            whole = entry_place(text, words, at, entry.begin)
            given[name] = Variable(value=value, start=word.start, whole=whole)
    return given
