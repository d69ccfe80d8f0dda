"""The worker process: results, errors, its end, and calls that take too long."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flettner.agent.domain.errors import WorkerError
from flettner.agent.prediction.worker import InlineWorker, Worker, WorkerProcess
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.step_law import StepLaw, UncertainLaw, read_law, write_law

LAW = UncertainLaw(
    law=StepLaw(step_us=20.0, token_us=1.0), draws=(StepLaw(step_us=21.0, token_us=1.0),), source="a test"
)


@asynccontextmanager
async def open_worker(longest_s: float = 60.0) -> AsyncIterator[WorkerProcess]:
    worker = WorkerProcess(longest_s=longest_s)
    try:
        yield worker
    finally:
        await worker.close()


@pytest.mark.anyio
@pytest.mark.parametrize("worker", [InlineWorker(), WorkerProcess()], ids=["inline", "process"])
async def test_a_call_returns_the_result_and_raises_the_error_of_the_function(worker: Worker) -> None:
    assert await worker.call(read_law, write_law(LAW), name="law") == LAW
    with pytest.raises(PredictionInputError, match="law: not JSON"):
        await worker.call(read_law, "}", name="law")
    await worker.close()


@pytest.mark.anyio
async def test_calls_at_the_same_time_take_turns_in_one_process_of_low_priority() -> None:
    async with open_worker() as worker:
        first, second = await asyncio.gather(worker.call(os.getpid), worker.call(os.getpid))
        niceness = await worker.call(os.nice, 0)

    assert first == second != os.getpid()
    assert niceness >= 10


@pytest.mark.anyio
async def test_after_the_process_ended_the_next_call_starts_another() -> None:
    async with open_worker() as worker:
        first = await worker.call(os.getpid)
        with pytest.raises(WorkerError, match="ended"):
            await worker.call(os._exit, 1)

        assert await worker.call(os.getpid) != first


@pytest.mark.anyio
async def test_a_defect_ends_the_call_and_not_the_process() -> None:
    async with open_worker() as worker:
        first = await worker.call(os.getpid)
        with pytest.raises(WorkerError, match="ValueError"):
            await worker.call(int, "x")

        assert await worker.call(os.getpid) == first


@pytest.mark.anyio
async def test_a_call_that_takes_too_long_is_ended() -> None:
    async with open_worker(longest_s=3.0) as worker:
        with pytest.raises(WorkerError, match="more than 3 s"):
            await worker.call(time.sleep, 600.0)
        worker.longest_s = 60.0

        assert await worker.call(abs, -1) == 1


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_no_answer_to_the_next_one() -> None:
    async with open_worker() as worker:
        cancelled = asyncio.ensure_future(worker.call(time.sleep, 600.0))
        await asyncio.sleep(0.1)
        cancelled.cancel()

        assert await worker.call(abs, -1) == 1


@pytest.mark.anyio
async def test_the_process_ends_with_the_end_of_its_input() -> None:
    async with open_worker() as worker:
        await worker.call(abs, -1)
        process = worker._process  # as if the daemon were gone
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()

        assert await asyncio.wait_for(process.wait(), 60.0) == 0
