"""Runs a part of the cluster in a thread with a loop of its own, for fixtures that several tests share."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

_T = TypeVar("_T")


@contextmanager
def in_background(enter: Callable[[], AbstractAsyncContextManager[_T]]) -> Iterator[_T]:
    """Yield what the context yields; it is left at the end."""
    ready: Future[tuple[_T, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        try:
            async with enter() as entered:
                over = asyncio.Event()
                ready.set_result((entered, asyncio.get_running_loop(), over))
                await over.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    entered, loop, over = ready.result()
    try:
        yield entered
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
