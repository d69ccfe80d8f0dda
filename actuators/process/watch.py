"""Watch a server until it is gone, and report when it stops answering."""

import asyncio
from collections.abc import Callable

from flettner.actuators.host.process_group import ended, exit_code, how_it_ended
from flettner.actuators.host.procfs import Process, runs
from flettner.actuators.vllm.probe import OpenAiProbe

_LOOK_S = 0.25  # between two reads of /proc
_REFUSALS = 3  # in a row: a server without a visible process counts as gone


async def until_gone(
    probe: OpenAiProbe,
    process: Process | None,
    on_silence: Callable[[str], None],
    *,
    find_foreign: Callable[[], str] = lambda: "",
    every_s: float,
    timeout_s: float,
    misses: int,
) -> str:
    """Return how it ended. `on_silence` is called each time that `misses` probes in a row have failed.

    A running process is not gone, whatever it answers: it may be busy, or stopped by a debugger. `process` is
    None if the process is not visible: the server is gone when its port refuses connections. `find_foreign`
    describes another process that listens at its address, and runs in a thread: that is silence at once.
    """
    asking = asyncio.create_task(
        _ask(probe, process, on_silence, find_foreign, every_s=every_s, timeout_s=timeout_s, misses=misses)
    )
    ending = [asyncio.create_task(ended(process, _LOOK_S))] if process else []
    try:
        await asyncio.wait([asking, *ending], return_when=asyncio.FIRST_COMPLETED)
        if asking.done() or process is None:
            return asking.result()
        return how_it_ended(exit_code(process))
    finally:
        for task in (asking, *ending):
            task.cancel()
        await asyncio.gather(asking, *ending, return_exceptions=True)


async def _ask(
    probe: OpenAiProbe,
    process: Process | None,
    on_silence: Callable[[str], None],
    find_foreign: Callable[[], str],
    *,
    every_s: float,
    timeout_s: float,
    misses: int,
) -> str:
    """Return only for a server without a visible process, when its port refuses connections."""
    missed = refused = 0
    while True:
        health = await probe.health(timeout_s)
        foreign = "" if health.status is None else await asyncio.to_thread(find_foreign)
        missed = (
            max(missed + 1, misses if missed < misses else 0) if foreign else missed + 1 if health.why else 0
        )
        refused = refused + 1 if health.refused else 0
        if process is None and refused >= min(_REFUSALS, misses):
            return f"is gone: its port refused {refused} connections in a row"
        if missed == misses and (process is None or runs(process)):
            on_silence(foreign or f"failed its health check {missed} times in a row: {health.why}")
        await asyncio.sleep(every_s)
