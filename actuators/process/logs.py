"""The logs of a target's servers: their last lines, and the cause of an end."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flettner.actuators.host import ownership_env, process_group
from flettner.actuators.host.memory import count_oom_kills
from flettner.actuators.host.origin import Origin
from flettner.actuators.host.process_group import exit_code
from flettner.actuators.host.procfs import Process
from flettner.actuators.host.server_log import log_cause, log_lines, log_tail
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLogs:
    """`origin`: of the servers, with the secrets to hide; it may raise ActError."""

    site: Site
    origin: Callable[[], Origin]

    def place(self, name: str) -> tuple[Path, int]:
        """Return its file, and the byte at which its start began."""
        note = ownership_env.read_note(self.site, name)
        return ownership_env.log_of(self.site, name), note.log_from if note else 0

    def lines(self, name: str) -> tuple[str, ...]:
        return log_lines(*self.place(name), self._secrets())

    def tail(self, name: str) -> tuple[str, ...]:
        return log_tail(*self.place(name), self._secrets())

    def with_cause(self, name: str, why: str) -> str:
        cause = self._cause(name)
        return f"{name} {why}" + (f": {cause}" if cause else "")

    def was_ended_from_outside(self, name: str, process: Process, oom_kills: int) -> bool:
        """Whether a third party ended it. `oom_kills`: the count of the kernel before that."""
        oom = count_oom_kills() > oom_kills
        return process_group.was_ended_from_outside(exit_code(process), cause=self._cause(name), oom=oom)

    def _cause(self, name: str) -> str:
        return log_cause(*self.place(name), self._secrets())

    def _secrets(self) -> frozenset[str]:
        with suppress(ActError):
            return self.origin().secrets
        return frozenset()
