"""Measure the free memory of this host and of each of its GPUs; every call has a timeout."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from flettner.agent.domain.errors import ActError
from flettner.primitives.bounded import read_stream

_SMI_S = 20.0  # without its persistence daemon the driver takes seconds per GPU
_REAP_S = 2.0  # a process that hangs in the driver survives SIGKILL
_FIELDS = ("index", "uuid", "memory.used", "memory.reserved", "memory.total", "mig.mode.current")
_OLD_FIELDS = ("index", "uuid", "memory.used", "memory.total")  # drivers before 470 know no `reserved`
_SHOWN = 300
_NO_DRIVER = 9  # exit code: not loaded, or its devices are not to be seen
_INDEX_DIGITS = 4
_AT_ONCE = 2**16
_KEPT_SHARE = 0.05  # of the host's memory: reserved for other processes
_GROWTH = 1.25  # a new server may need more than its like has used so far
_GPU_NOISE_MIB = 64.0  # other processes on the GPU may free or take as much


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    index: int
    uuid: str
    free_mib: float | None  # None: the driver does not report it
    total_mib: float | None
    sliced: bool = False  # MIG: no server can have all of its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The free memory of the host. None: unknown, for the reason `why`."""

    memory: int | None = None  # bytes
    memory_total: int | None = None
    gpus: tuple[GpuMemory, ...] | None = None
    why: str = "not measured"


def spare_memory(host: Host) -> int:
    """Return the bytes of host memory that servers may take."""
    return (host.memory or 0) - int((host.memory_total or 0) * _KEPT_SHARE)


def expected_memory(limit: int, memory: float) -> float:
    """Return the bytes of host memory that one more server like this may take."""
    return limit or memory * _GROWTH


def find_gpu(name: str, gpus: Sequence[GpuMemory]) -> GpuMemory | None:
    """Find a GPU by index, or by the beginning of its UUID."""
    matches = [gpu for gpu in gpus if name == str(gpu.index) or (len(name) > 4 and gpu.uuid.startswith(name))]  # noqa: PLR2004 - "GPU-"
    return matches[0] if len(matches) == 1 else None


async def free_memory() -> int | None:
    """Return the bytes available without swapping, from /proc/meminfo; None: not known."""
    return await asyncio.to_thread(_meminfo, Path("/proc/meminfo"), "MemAvailable")


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory, from /proc/vmstat; 0: not known."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


async def total_memory() -> int | None:
    return await asyncio.to_thread(_meminfo, Path("/proc/meminfo"), "MemTotal")


async def gpus(command: str = "nvidia-smi", within_s: float = _SMI_S) -> tuple[GpuMemory, ...]:
    """Return all NVIDIA GPUs of the host. Raises ActError if nvidia-smi is missing, fails or hangs."""
    fields: tuple[str, ...] = _FIELDS
    code, output = await _run(command, fields, within_s)
    if code and "is not a valid field" in output:
        fields = _OLD_FIELDS
        code, output = await _run(command, fields, within_s)
    if code:
        hidden = " (hidden from the service? see nvidia.conf)" if code == _NO_DRIVER else ""
        raise ActError(f"{command}: exit {code}{hidden}: {output.strip()[:_SHOWN]}")
    return tuple(_gpu(line, fields, command) for line in output.splitlines() if line.strip())


async def until_freed(every_s: float = 1.0, within_s: float = 30.0) -> None:
    """Return when no more GPU memory is freed, after `within_s` at the latest; at once if it is not known.

    The driver frees it some time after a server has ended.
    """
    with suppress(TimeoutError, ActError):
        async with asyncio.timeout(within_s):
            before = _free_by_gpu(await gpus())
            while before:
                await asyncio.sleep(every_s)
                now = _free_by_gpu(await gpus())
                if all(free - before.get(gpu, free) <= _GPU_NOISE_MIB for gpu, free in now.items()):
                    return
                before = now


def _free_by_gpu(gpus: Sequence[GpuMemory]) -> dict[str, float]:
    return {gpu.uuid: gpu.free_mib for gpu in gpus if gpu.free_mib is not None}


async def _run(command: str, fields: Sequence[str], within_s: float) -> tuple[int, str]:
    try:
        child = await asyncio.create_subprocess_exec(
            command,
            f"--query-gpu={','.join(fields)}",
            "--format=csv,noheader,nounits",
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ActError(f"{command} cannot be started: {error.strerror or error}") from error
    assert child.stdout is not None
    try:
        async with asyncio.timeout(within_s):
            output = await read_stream(_pieces(child.stdout))
            await child.wait()
    except ValueError as error:
        raise ActError(f"{command} prints no table: {error}") from error
    except TimeoutError as error:
        raise ActError(
            f"{command} did not answer within {within_s:g} s, killed: look at the driver"
        ) from error
    finally:
        await _end(child)
    return child.returncode or 0, output.decode(errors="replace")


async def _pieces(printed: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await printed.read(_AT_ONCE):
        yield piece


async def _end(child: Process) -> None:
    """Send SIGKILL to its group; give up after 2 s if the driver blocks it."""
    if child.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_REAP_S):
            await child.communicate()


def _gpu(line: str, fields: Sequence[str], command: str) -> GpuMemory:
    row = dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=False))
    if len(row) != len(fields) or not row["index"].isdecimal() or len(row["index"]) > _INDEX_DIGITS:
        raise ActError(f"{command}: cannot read this row: {line.strip()[:_SHOWN]}")
    used, total = _number(row["memory.used"]), _number(row["memory.total"])
    reserved = _number(row.get("memory.reserved", "0")) or 0.0
    return GpuMemory(
        index=int(row["index"]),
        uuid=row["uuid"],
        free_mib=None if used is None or total is None else max(0.0, total - used - reserved),
        total_mib=total,
        sliced=row.get("mig.mode.current") == "Enabled",
    )


def _number(cell: str) -> float | None:
    """Return None for "[N/A]" and other texts."""
    with suppress(ValueError):
        number = float(cell)
        return number if isfinite(number) and number >= 0 else None
    return None


def _meminfo(path: Path, name: str) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
