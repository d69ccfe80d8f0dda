"""Notice that a server is lost: its process ended, or it stopped answering /health."""

import asyncio

from actuators.openai_probe import OpenAiProbe
from actuators.proc_table import Process, runs
from actuators.process_group import ended, exit_code, how_it_ended

_LOOK_S = 0.25  # how often the table of processes is asked; cheap, and far below any health interval
_SHORTEST_PROBE_S = 1.0


async def lost(probe: OpenAiProbe, known: Process | None, *, every_s: float, misses: int) -> str:
    """Returns how, when it is lost. `known` is None where the process is not ours to see: only /health is."""
    silent = asyncio.create_task(went_silent(probe, every_s=every_s, misses=misses))
    tasks: list[asyncio.Task[str] | asyncio.Task[None]] = [silent]
    if known:
        tasks.append(asyncio.create_task(ended(known, _LOOK_S)))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if known and not runs(known):
        return how_it_ended(exit_code(known))
    return silent.result()


async def went_silent(probe: OpenAiProbe, *, every_s: float, misses: int) -> str:
    """Returns how, after so many missed probes in a row. A frozen process counts: it answers nothing."""
    missed = 0
    while True:
        why = await probe.health(max(every_s, _SHORTEST_PROBE_S))
        missed = missed + 1 if why else 0
        if missed >= misses:
            return f"is lost: {why}, {missed} times in a row"
        await asyncio.sleep(every_s)
