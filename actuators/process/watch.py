"""Watch a server until it is gone, and tell on the way whenever it falls silent."""

import asyncio
from collections.abc import Callable

from actuators.host.process_group import ended, exit_code, how_it_ended
from actuators.host.procfs import Process, runs
from actuators.vllm.probe import OpenAiProbe

_LOOK_S = 0.25  # how often the table of processes is asked; cheap, and far below any health interval
_REFUSALS = 3  # in a row, before a server whose process cannot be seen is taken for gone


async def until_gone(
    probe: OpenAiProbe,
    known: Process | None,
    silent: Callable[[str], None],
    *,
    every_s: float,
    timeout_s: float,
    misses: int,
) -> str:
    """Returns how it went. `silent` is told, once each time, that so many probes in a row were missed.

    A process that runs is not gone, whatever it answers: it may be busy, or stopped by a debugger. `known`
    is None where the process cannot be seen: gone is then who refuses connections, not who lets them wait.
    """
    asking = asyncio.create_task(
        _ask(probe, known, silent, every_s=every_s, timeout_s=timeout_s, misses=misses)
    )
    ending = [asyncio.create_task(ended(known, _LOOK_S))] if known else []
    try:
        await asyncio.wait([asking, *ending], return_when=asyncio.FIRST_COMPLETED)
        if asking.done() or known is None:
            return asking.result()
        return how_it_ended(exit_code(known))
    finally:
        for task in (asking, *ending):
            task.cancel()
        await asyncio.gather(asking, *ending, return_exceptions=True)


async def _ask(
    probe: OpenAiProbe,
    known: Process | None,
    silent: Callable[[str], None],
    *,
    every_s: float,
    timeout_s: float,
    misses: int,
) -> str:
    """Returns only for a server whose process is not known, when its port is closed."""
    missed = refused = 0
    while True:
        health = await probe.health(timeout_s)
        missed = missed + 1 if health.why else 0
        refused = refused + 1 if health.refused else 0
        if known is None and refused >= min(_REFUSALS, misses):
            return f"is gone: its port refused {refused} connections in a row"
        if missed == misses and (known is None or runs(known)):
            silent(f"is silent: {health.why}, {missed} times in a row")
        await asyncio.sleep(every_s)
