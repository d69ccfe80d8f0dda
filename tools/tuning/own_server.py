"""A server that `flettner tune` starts and stops itself, from the given command with other flags."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from flettner.agent.domain.errors import ActError, ConfigError
from flettner.primitives.waiting import poll_until
from flettner.vllm_facts.flag_parser import find_api_key, parse_address
from flettner.vllm_facts.shell_command.serve_command import ServeCommand

_POLL_S = 0.5
_GRACE_S = 60.0  # for requests in flight and the memory of the GPU
_TAIL = 15  # lines of the log in an error


@dataclass(slots=True)
class OwnServer:
    """`command` as given; its address and key must stay the same in all trials. `start_s`: deadline."""

    command: ServeCommand
    start_s: float = 1800.0
    _child: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://{parse_address(self.command.argv).reached_here()}"

    @property
    def api_key(self) -> str:
        return find_api_key(self.command.argv) or self.command.server_env.get("VLLM_API_KEY", "")

    async def check(self) -> None:
        """Raises ConfigError if another server listens there, or the command cannot be started here."""
        if {"-d", "--detach"} & set(self.command.before):
            raise ConfigError("docker run -d: leave -d out; the container must end with the command")
        if self.command.live or self.command.aside:
            raise ConfigError("give the command without variables of the shell and redirections")
        if await self._is_healthy():
            raise ConfigError(f"a server answers at {self.url} already: stop it, or give another --port")

    async def start(self, command: ServeCommand, log: Path) -> None:
        """Return when it is healthy. Raises ActError with the last lines of its log."""
        env = {name: value for name, value in os.environ.items() if name not in command.unset}
        with log.open("wb") as file:
            try:
                self._child = subprocess.Popen(  # noqa: ASYNC220, S603 - the command is the operator's
                    command.words,
                    env={**env, **command.env},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"{command.words[0]}: cannot be started: {error.strerror}") from error
        child = self._child

        async def is_healthy() -> bool:
            if child.poll() is not None:
                raise ActError(f"the server exited with code {child.returncode}", _tail(log))
            return await self._is_healthy()

        if not await poll_until(is_healthy, _POLL_S, self.start_s):
            raise ActError(f"the server was not healthy within {self.start_s:g} s", _tail(log))

    async def stop(self) -> None:
        """Return when all its processes have ended. Raises ActError if they do not."""
        child, self._child = self._child, None
        if child is None:
            return
        child.send_signal(signal.SIGTERM)
        if not await _ends(child, _GRACE_S) and self.command.before:
            raise ActError(f"the container did not stop within {_GRACE_S:g} s: stop it yourself")
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # the engine's processes are in its session
        await _ends(child, _GRACE_S)

    async def _is_healthy(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
                session.get(f"{self.url}/health") as answer,
            ):
                return answer.status == 200  # noqa: PLR2004
        except (aiohttp.ClientError, TimeoutError):
            return False


async def _ends(child: "subprocess.Popen[bytes]", within_s: float) -> bool:
    try:
        await asyncio.to_thread(child.wait, within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _tail(log: Path) -> tuple[str, ...]:
    lines: Sequence[str] = log.read_text("utf-8", "replace").splitlines()
    return tuple(lines[-_TAIL:])
