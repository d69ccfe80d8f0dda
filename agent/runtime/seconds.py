"""The seconds of a loop, at a fixed distance from its start."""

import asyncio
from collections.abc import AsyncIterator
from math import ceil


async def each_second(offset_s: float = 0.0) -> AsyncIterator[float]:
    """Yield once a second how late it is, s; the first time after a second less `offset_s`.

    Work and delays move no later second; those that pass meanwhile are left out.
    """
    clock = asyncio.get_running_loop().time
    due_s = clock() - offset_s
    while True:
        due_s += max(1, ceil(clock() - due_s))
        await asyncio.sleep(due_s - clock())
        yield clock() - due_s
