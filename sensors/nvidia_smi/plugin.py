"""Follows this host's GPUs through one long-running nvidia-smi: unlike a library call, it can be killed."""

import asyncio
import os
import signal
from asyncio import StreamReader
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from agent.domain.errors import SensorError
from agent.domain.ports import Now, View
from agent.domain.reading import Gpu, GpuSample, Sample, SourceState
from agent.plugins.option_errors import check_periods
from sensors.nvidia_smi.csv_rows import EXITS, FIELDS, fewer_fields, gpu_of

_FIRST_RETRY_S = 1.0
_REAP_S = 2.0  # one that hangs in the driver may outlive even SIGKILL
_MOST_UNREADABLE = 100  # lines in a row
_SHOWN = 300


class _FieldRefused(Exception):  # noqa: N818  an older driver, not an error: another set of fields will do
    def __init__(self, fields: tuple[str, ...]) -> None:
        super().__init__()
        self.fields = fields


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """`command` is one executable. Memory used counts what the driver reserves, so that total - used is free.

    Without a readable row for `stalled_after_s` the child is killed. The next is tried after 1 s, 2 s, ... up
    to `retry_at_most_s`; a command that cannot be started is tried at that slowest pace only.
    """

    command: str = "nvidia-smi"
    every_s: float = 1.0
    stalled_after_s: float = 10.0
    retry_at_most_s: float = 60.0

    def __post_init__(self) -> None:
        if not os.fspath(self.command).strip() or "\0" in self.command:
            raise ValueError(f"command must name an executable, not {self.command!r}")
        check_periods(self, "every_s", "stalled_after_s", "retry_at_most_s")
        if self.stalled_after_s <= self.every_s:
            raise ValueError(
                f"stalled_after_s must be above every_s = {self.every_s:g}, not {self.stalled_after_s:g}"
            )

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:  # noqa: ARG002  one host
        source = _Source(emit, now)
        fields = FIELDS
        retry_s = _FIRST_RETRY_S
        while True:
            source.ticks = 0
            try:
                await self._follow(fields, source)
            except _FieldRefused as refused:
                fields = refused.fields
                continue
            except SensorError as error:
                source.say_lost(f"{self.command}: {error}")
                retry_s = _FIRST_RETRY_S if source.ticks else retry_s
            except OSError as error:
                source.say_lost(f"{self.command} cannot be started: {error.strerror or error}")
                retry_s = self.retry_at_most_s
            await asyncio.sleep(min(retry_s, self.retry_at_most_s))
            retry_s *= 2

    async def _follow(self, fields: tuple[str, ...], source: "_Source") -> None:
        """One child, from start to end. Always ends by an exception: SensorError, _FieldRefused, OSError."""
        if source.undead is not None:  # never a heap of them in front of a driver that hangs
            await source.undead.communicate()
            source.undead = None
        child = await asyncio.create_subprocess_exec(
            self.command,
            f"--query-gpu={','.join(fields)}",
            "--format=csv,noheader,nounits",
            f"--loop-ms={max(1, round(self.every_s * 1000))}",
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        assert child.stdout is not None
        rows = _Rows(child.stdout, fields, source.tick)
        try:
            await rows.read(quiet_s=self.every_s / 2, stalled_after_s=self.stalled_after_s)
            async with asyncio.timeout(self.stalled_after_s):
                code = await child.wait()
        except TimeoutError as error:
            why = f"no readable row for {self.stalled_after_s:g} s, killed"
            raise SensorError(": ".join(filter(None, (why, rows.said)))) from error
        finally:
            source.undead = await _end(child)
        fewer = fewer_fields(fields, rows.said)
        if fewer is not None:
            raise _FieldRefused(fewer)
        raise SensorError(": ".join(filter(None, (f"exit {code}", EXITS.get(code), rows.said))))


class _Rows:
    """Reads the rows that one child prints and groups them into ticks."""

    def __init__(
        self, printed: StreamReader, fields: tuple[str, ...], saw: Callable[[tuple[Gpu, ...]], None]
    ) -> None:
        self._printed = printed
        self._fields = fields
        self._saw = saw
        self._tick: dict[int, Gpu] = {}
        self._unreadable: list[str] = []  # since the last row

    @property
    def said(self) -> str:
        """What it said last that is no row."""
        return " ".join(self._unreadable)[:_SHOWN]

    async def read(self, *, quiet_s: float, stalled_after_s: float) -> None:
        """Until the child closes its output. Raises TimeoutError when no row comes for `stalled_after_s`.

        A tick has no end mark: it is over when an index comes again, or after `quiet_s` without a row.
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
                self._tick_is_over()
                continue
            if not line:
                return
            if line.strip() and self._take(line):
                row_s = clock()

    def _take(self, line: str) -> bool:
        """Whether it is a row."""
        try:
            gpu = gpu_of(line, self._fields)
        except SensorError as error:
            self._unreadable.append(line.strip())
            if len(self._unreadable) > _MOST_UNREADABLE:
                raise SensorError(f"{_MOST_UNREADABLE} lines in a row cannot be read; {error}") from error
            return False
        self._unreadable.clear()
        if gpu.index in self._tick:
            self._tick_is_over()
        self._tick[gpu.index] = gpu
        return True

    def _tick_is_over(self) -> None:
        self._saw(tuple(self._tick.values()))
        self._tick.clear()

    async def _line(self) -> str:
        try:
            line = await self._printed.readline()
        except ValueError as error:
            raise SensorError("it prints lines of more than 64 KiB") from error
        return line.decode(errors="replace")


class _Source:
    """Says once that nvidia-smi is lost, and once that it is back."""

    def __init__(self, emit: Callable[[Sample], None], now: Now) -> None:
        self._emit = emit
        self._now = now
        self._lost = False
        self.ticks = 0  # of this child
        self.undead: Process | None = None

    def tick(self, gpus: tuple[Gpu, ...]) -> None:
        self.ticks += 1
        if self._lost:
            self._lost = False
            self._emit(SourceState(at=self._now(), source="nvidia_smi", available=True))
        self._emit(GpuSample(at=self._now(), gpus=gpus))

    def say_lost(self, why: str) -> None:
        if not self._lost:
            self._lost = True
            self._emit(SourceState(at=self._now(), source="nvidia_smi", available=False, why=why))


async def _end(child: Process) -> Process | None:
    """SIGKILL for its whole group. Returns it when it lives on all the same, or somebody holds its pipe."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(_REAP_S):
            await child.communicate()  # and not only `wait`: what is left in the pipe keeps it open
    except TimeoutError:
        return child
    return None


plugin = NvidiaSmi
