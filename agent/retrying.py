"""What tenacity lacks here; docs/architecture.md says what is tried again with it.

Each use builds its own policy, because an AsyncRetrying keeps state. A policy names the errors or results to
try again, so that a cancellation never is one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from tenacity import AsyncRetrying, RetryCallState
from tenacity.wait import wait_base

log = structlog.get_logger()
T = TypeVar("T")


async def retry(policy: AsyncRetrying, act: Callable[[], Awaitable[T]]) -> T:
    """Call `act` under the policy. Alone, tenacity takes the coroutine that a lambda returns for a result."""

    async def attempt() -> T:
        return await act()

    result: T = await policy(attempt)
    return result


class Backoff(wait_base):
    """A wait that doubles from `first_s` up to `longest_s`, and begins again after `reset`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s = first_s

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s

    def __call__(self, retry_state: RetryCallState) -> float:
        del retry_state
        pause_s = min(self._next_s, self._longest_s)
        self._next_s = 2 * pause_s
        return pause_s


def stop_before(seconds: float) -> Callable[[RetryCallState], bool]:
    """As tenacity's stop_before_delay, from now on, by the event loop's clock, which tests move."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + seconds
    return lambda state: clock() + state.upcoming_sleep >= end_s


def failure(state: RetryCallState) -> BaseException | None:
    """Return the error of the last attempt; None if it returned."""
    return state.outcome.exception() if state.outcome is not None else None


@dataclass(slots=True)
class ReasonLog:
    """A `before_sleep` that warns of the reason why an attempt failed, again only if it is another one."""

    event: str
    fields: dict[str, str] = field(default_factory=dict)
    _why: str = ""

    def __call__(self, state: RetryCallState) -> None:
        error = failure(state)
        why = str(error or (state.outcome.result() if state.outcome is not None else ""))
        if why != self._why:
            self._why = why
            log.warning(self.event, **self.fields, why=why)
