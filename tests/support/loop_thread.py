"""An event loop in a thread of its own, for tests that are not async themselves."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    def __init__(self, patience_s: float = 60.0) -> None:
        self._patience_s = patience_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the coroutine in the thread, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=self._patience_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=self._patience_s)
        self._loop.close()


@contextmanager
def loop_thread(patience_s: float = 60.0) -> Iterator[LoopThread]:
    thread = LoopThread(patience_s)
    try:
        yield thread
    finally:
        thread.close()
