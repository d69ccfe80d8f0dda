"""The seconds of a loop, at a fixed distance from its start."""

import asyncio
from collections.abc import AsyncIterator
from math import ceil


async def each_second() -> AsyncIterator[float]:
    """Yield once a second how late it is, s.

    Work and delays move no later second; those that pass meanwhile are left out.
    """
    clock = asyncio.get_running_loop().time
    due_s = clock()
    while True:
        due_s += max(1, ceil(clock() - due_s))
        await asyncio.sleep(due_s - clock())
        yield clock() - due_s
