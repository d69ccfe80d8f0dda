"""Reads this host's GPUs from one long-running nvidia-smi, which unlike a library call can be killed."""

import asyncio
import os
import signal
from asyncio import StreamReader
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tenacity import AsyncRetrying, retry_if_exception_type

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import Gpu, GpuSample, Sample
from flettner.agent.plugins.option_errors import check_periods
from flettner.agent.retrying import Backoff, failure, retry
from flettner.sensors.nvidia_smi.csv_rows import EXITS, FIELDS, parse_gpu, retry_fields
from flettner.sensors.shared.source_reporter import SourceReporter

_FIRST_RETRY_S = 1.0
_REAP_S = 2.0  # a process that hangs in the driver may outlive SIGKILL
_MOST_UNREADABLE = 100  # consecutive lines
_SHOWN = 300


class _FieldRefused(Exception):  # noqa: N818  an older driver, not an error: it supports other fields
    def __init__(self, fields: tuple[str, ...]) -> None:
        super().__init__()
        self.fields = fields


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """`command` is one executable. Used memory includes the driver's reserve, so that total - used is free.

    Without a readable row for `stalled_after_s` the child is killed. It is started again after 1 s, 2 s, ...
    up to `retry_at_most_s`; a command that cannot be started is retried at that longest interval only.
    """

    command: str = "nvidia-smi"
    gpus: tuple[int, ...] = ()  # by index, those of the target; empty: all of the host
    every_s: float = 1.0
    stalled_after_s: float = 10.0
    retry_at_most_s: float = 60.0

    def __post_init__(self) -> None:
        if not os.fspath(self.command).strip() or "\0" in self.command:
            raise ValueError(f"command must name an executable, not {self.command!r}")
        if min(self.gpus, default=0) < 0:
            raise ValueError(f"gpus must be indexes from 0 on, not {', '.join(map(str, self.gpus))}")
        check_periods(self, "every_s", "stalled_after_s", "retry_at_most_s")
        if self.stalled_after_s <= self.every_s:
            raise ValueError(
                f"stalled_after_s must be above every_s = {self.every_s:g}, not {self.stalled_after_s:g}"
            )

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:  # noqa: ARG002  one host
        longest_s = self.retry_at_most_s
        backoff = Backoff(_FIRST_RETRY_S, longest_s)
        source = _Source(emit, now, on_tick=backoff.reset)
        following = AsyncRetrying(
            retry=retry_if_exception_type((SensorError, OSError)),
            wait=lambda state: longest_s if isinstance(failure(state), OSError) else backoff(state),
            before_sleep=lambda state: source.report_lost(self._describe(failure(state))),
        )
        await retry(following, partial(self._follow, source))

    def _describe(self, error: BaseException | None) -> str:
        if isinstance(error, OSError):
            return f"{self.command} cannot be started: {error.strerror or error}"
        return f"{self.command}: {error}"

    async def _follow(self, source: "_Source") -> None:
        """Run children with the fields that the driver supports. Always raises SensorError or OSError."""
        while True:
            try:
                await self._run_child(source.fields, source)
            except _FieldRefused as refused:
                source.fields = refused.fields

    async def _run_child(self, fields: tuple[str, ...], source: "_Source") -> None:
        """Run one child to its end. Always raises SensorError, _FieldRefused or OSError."""
        if source.unreaped is not None:  # at most one process that hangs in the driver
            await source.unreaped.communicate()
            source.unreaped = None
        child = await asyncio.create_subprocess_exec(
            self.command,
            f"--query-gpu={','.join(fields)}",
            "--format=csv,noheader,nounits",
            *([f"--id={','.join(map(str, self.gpus))}"] if self.gpus else []),
            f"--loop-ms={max(1, round(self.every_s * 1000))}",
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        assert child.stdout is not None
        rows = _RowReader(child.stdout, fields, source.tick)
        try:
            await rows.read(quiet_s=self.every_s / 2, stalled_after_s=self.stalled_after_s)
            async with asyncio.timeout(self.stalled_after_s):
                code = await child.wait()
        except TimeoutError as error:
            why = f"no readable row for {self.stalled_after_s:g} s, killed"
            raise SensorError(": ".join(filter(None, (why, rows.unreadable_text)))) from error
        finally:
            source.unreaped = await _kill(child)
        supported = retry_fields(fields, rows.unreadable_text)
        if supported is not None:
            raise _FieldRefused(supported)
        raise SensorError(": ".join(filter(None, (f"exit {code}", EXITS.get(code), rows.unreadable_text))))


class _RowReader:
    """Reads the rows that one child prints and groups them into ticks."""

    def __init__(
        self, output: StreamReader, fields: tuple[str, ...], on_tick: Callable[[tuple[Gpu, ...]], None]
    ) -> None:
        self._output = output
        self._fields = fields
        self._on_tick = on_tick
        self._tick: dict[int, Gpu] = {}
        self._unreadable: list[str] = []  # since the last row

    @property
    def unreadable_text(self) -> str:
        """The output since the last row that is not a row."""
        return " ".join(self._unreadable)[:_SHOWN]

    async def read(self, *, quiet_s: float, stalled_after_s: float) -> None:
        """Read until the child closes its output. Raises TimeoutError after `stalled_after_s` without a row.

        A tick has no end mark: it ends when an index repeats, or after `quiet_s` without a row.
        """
        clock = asyncio.get_running_loop().time
        row_s = clock()
        while True:
            try:
                async with asyncio.timeout_at(clock() + quiet_s if self._tick else row_s + stalled_after_s):
                    line = await self._line()
            except TimeoutError:
                if not self._tick:
                    raise
                self._end_tick()
                continue
            if not line:
                return
            if line.strip() and self._add(line):
                row_s = clock()

    def _add(self, line: str) -> bool:
        """Add the line; False if it is not a row."""
        try:
            gpu = parse_gpu(line, self._fields)
        except SensorError as error:
            self._unreadable.append(line.strip())
            if len(self._unreadable) > _MOST_UNREADABLE:
                raise SensorError(f"{_MOST_UNREADABLE} consecutive lines cannot be read; {error}") from error
            return False
        self._unreadable.clear()
        if gpu.index in self._tick:
            self._end_tick()
        self._tick[gpu.index] = gpu
        return True

    def _end_tick(self) -> None:
        self._on_tick(tuple(self._tick.values()))
        self._tick.clear()

    async def _line(self) -> str:
        try:
            line = await self._output.readline()
        except ValueError as error:
            raise SensorError("a line is longer than 64 KiB") from error
        return line.decode(errors="replace")


class _Source:
    """Emits the ticks of the current child and the availability of nvidia-smi."""

    def __init__(self, emit: Callable[[Sample], None], now: Now, on_tick: Callable[[], None]) -> None:
        self._emit = emit
        self._now = now
        self._on_tick = on_tick
        self._reporter = SourceReporter(emit, now)
        self.fields = FIELDS  # that the driver supports
        self.unreaped: Process | None = None

    def tick(self, gpus: tuple[Gpu, ...]) -> None:
        self._on_tick()
        self._reporter.report("nvidia_smi", available=True)
        self._emit(GpuSample(at=self._now(), gpus=gpus))

    def report_lost(self, why: str) -> None:
        self._reporter.report("nvidia_smi", available=False, why=why)


async def _kill(child: Process) -> Process | None:
    """Kill the process group. Returns the process if it still runs or its pipe stays open."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(_REAP_S):
            await child.communicate()  # not only `wait`: unread output keeps the pipe open
    except TimeoutError:
        return child
    return None


plugin = NvidiaSmi
