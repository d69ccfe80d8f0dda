"""One server that a file starts, with the place of each of its words in the text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flettner.vllm_facts.serve_config import Container, EntryFault, Granted, Launcher

Form = Literal["shell", "block", "flow", "key", "value", "keyword", "literal", "computed", "none"]
"""How a word is written: in a shell command, as an item of a list (in lines or in brackets), as a YAML key or
its value, as an argument of a call in Python, its literal value, or what an expression comes to, or not at
all (an image or a chart adds it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word as the program gets it, and its place in the text, quotes included."""

    text: str
    start: int = 0
    end: int = 0
    form: Form = "none"
    live: bool = False  # contains a variable or a command that the shell expands
    items: "tuple[Word, ...]" = ()  # of an array: `ARGS=(--a --b)`


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable of the server. `whole`: the place of its entry, to remove it."""

    value: str
    start: int = 0
    whole: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server. `unread` hides flags, `remarks` hide other facts; with a `problem` there is no command."""

    name: str
    start: int  # of the command in the text
    words: tuple[Word, ...] = ()
    env: Mapping[str, Variable] = field(default_factory=dict)
    version: str = ""
    gpu: str = ""  # as the file names it
    gpus: int | None = None
    alternative: bool = False  # the server of the launch before it, on another kind of GPU
    devices: tuple[str, ...] = ()  # the GPUs of its container; empty: all, or not said
    together: str = ""  # with the servers of the file or the host of which the same is said: units, nvidia
    little_shared_memory: Launcher | None = None  # that leaves the container with 64 MB of /dev/shm
    granted: Granted | None = None
    container: Container | None = None
    hosts: int | None = None  # that serve one model together
    ray: bool = False  # Ray is started beside the server
    in_process: bool = False  # `LLM(…)` of a program, or a replica of Ray Serve
    entry_fault: EntryFault | None = None
    locks_memory: bool = False  # without a limit: `ulimits` of compose
    bypassed_image: str = ""  # whose own entrypoint another command replaces
    unread: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str = ""
    script: str = ""  # of the build's folder, which the container starts: it may start a server


def line_of(text: str, at: int) -> int:
    """The number of the line, from 1."""
    return text.count("\n", 0, at) + 1
