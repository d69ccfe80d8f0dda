"""The options of the process engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flettner.actuators.process.address import parse_url
from flettner.actuators.vllm.engine import ServerOptions

_MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(ServerOptions):
    """The fields are the options of `[targets.engine]`."""

    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    command: tuple[str, ...] = field(default=(), repr=False)  # empty: the command of the adopted server
    serving: str = ""  # "http://127.0.0.1:8000": a running server to adopt
    ports: tuple[int, int] = (8101, 8199)  # where new servers listen: first and last
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # added to the daemon's own
    cwd: str = ""  # working directory of the servers; empty: the daemon's
    stop_s: float = 20.0  # from SIGTERM to SIGKILL

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", tuple(self.command))  # TOML has lists only
        object.__setattr__(self, "ports", tuple(self.ports))
        super().__post_init__()
        if not self.command and not self.serving:
            raise ValueError(
                "say what is served: command = ['vllm', 'serve', 'MODEL'], or serving = 'http://…'"
            )
        if self.serving:
            parse_url(self.serving)
        if len(self.ports) != len(("first", "last")) or not 0 < self.ports[0] <= self.ports[1] <= _MAX_PORT:
            raise ValueError(f"ports must be [first, last] within 1..{_MAX_PORT}, not {list(self.ports)}")
