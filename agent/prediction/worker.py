"""Runs the performance model beside the daemon: its computations would stop the event loop for seconds.

One process serves all targets, started on first need and again after it ended. It has a lower priority and
ends with the daemon. Requests and results are pickles on its standard input and output, each after its
length.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar, cast

import structlog

import flettner
from flettner.agent.domain.errors import WorkerError, WorkerTimeoutError

LONGEST_S = 60.0  # of one call; a search over 60 settings takes 2 s
HEADER_BYTES = 8
ENDS_WITHIN_S = 2.0
log = structlog.get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Worker(Protocol):
    """Calls functions of modules. Arguments and results are picklable."""

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Raises what the function raises, or WorkerError."""
        ...

    async def close(self) -> None: ...


class InlineWorker:
    """Calls at once, in the caller's process: for virtual time."""

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class WorkerProcess:
    """One call at a time; others wait."""

    longest_s: float = LONGEST_S
    _process: asyncio.subprocess.Process | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        request = pickle.dumps((function, args, kwargs))
        async with self._turn:
            try:
                async with asyncio.timeout(self.longest_s):
                    succeeded, result = pickle.loads(await self._exchange(request))  # noqa: S301 - our process
            except BaseException as error:
                await self._kill()  # the next call must not get this one's answer
                if isinstance(error, TimeoutError):
                    raise WorkerTimeoutError(
                        f"{function.__name__} takes more than {self.longest_s:g} s"
                    ) from error
                if isinstance(error, (OSError, EOFError)):
                    raise WorkerError("the worker process ended") from error
                raise
        if not succeeded:
            raise cast("Exception", result)
        return cast("R", result)

    async def close(self) -> None:
        await self._kill()

    async def _exchange(self, request: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await _start()
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            raise EOFError
        to.write(len(request).to_bytes(HEADER_BYTES) + request)
        await to.drain()
        return await back.readexactly(int.from_bytes(await back.readexactly(HEADER_BYTES)))

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.kill()
        await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)


async def _start() -> asyncio.subprocess.Process:
    """Start it with the packages of this installation, in a session of its own: Ctrl-C is the daemon's."""
    root = Path(flettner.__file__).parents[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "flettner.agent.prediction.worker_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,
    )
    log.info("prediction.worker_started", pid=process.pid)
    return process
