"""Waits until something is true that nobody reports."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeVar

_T = TypeVar("_T")


async def poll_until(condition: Callable[[], Awaitable[_T]], every_s: float, within_s: float = inf) -> _T:
    """Ask until the answer is true, once at least, or the time is over; return the last answer.

    `every_s`: the pause between two questions. A question that is open at the deadline is not cancelled.
    """
    clock = asyncio.get_running_loop().time
    end_s = clock() + within_s
    while not (answer := await condition()) and clock() < end_s:  # noqa: ASYNC110 - nobody reports it
        await asyncio.sleep(every_s)
    return answer
