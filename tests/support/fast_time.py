"""An event loop that jumps over waits: an hour of sleep takes no time.

Only for stories whose waits are all on timers; one that talks to a socket takes the ordinary loop.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class _Jump(selectors.SelectSelector):
    """Instead of waiting for the next timer, move the clock to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for something that no timer will bring")
        self.now += max(timeout, 0.0)
        return super().select(0)


class FastLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: object
    ) -> asyncio.Future[Any]:
        """Call it here: no timer would wait for a thread."""
        del executor
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as a thread hands it on
            done.set_exception(error)
        return done


def in_no_time(story: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(story)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on this loop."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        in_no_time(test(*args, **kwargs))

    return run


def loop_now() -> datetime:
    """Wall time that follows the loop's own clock."""
    return NOON + timedelta(seconds=asyncio.get_running_loop().time())
