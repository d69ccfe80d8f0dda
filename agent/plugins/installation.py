"""What `flettner init` finds, and the file by which flettner is installed where that is not this host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flettner.agent.domain.model import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServers:
    """The vLLM servers that run where an engine looks, each with the engine's options for it.

    `skipped`: what the engine may not inspect, or cannot run, and why.
    """

    servers: Sequence[tuple[Server, Mapping[str, object]]] = ()
    skipped: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTarget:
    """A server as a target of the config. `options`: of its `[targets.engine]`."""

    name: str
    description: str  # one line of printable text
    server: Server
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """`config`: the tables of the config that the file has; flettner's own keys are set where it runs."""

    text: str
    config: str
    next_steps: tuple[str, ...]  # commands


class Installer(Protocol):
    """An engine with such a file. `none_found`: what to do where it finds no server."""

    installation_file: str
    none_found: str

    def make_installation(self, targets: Sequence[FoundTarget]) -> Installation: ...
