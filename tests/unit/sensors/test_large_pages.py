"""Large metrics pages: read in a thread, seldom, and without harm to other targets."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress

import pytest
from structlog.testing import capture_logs

from flettner.agent.domain.reading import EngineSample
from flettner.sensors.vllm_metrics import plugin
from flettner.sensors.vllm_metrics.plugin import VllmMetrics
from flettner.vllm_facts.metrics.totals import totals
from tests.unit.sensors.pages import PAGE, page_server
from tests.unit.sensors.run_sensor import Fleet, run_sensor

QUICK = VllmMetrics(every_s=0.05, timeout_s=20.0)
EACH_SECOND = VllmMetrics(every_s=1.0, timeout_s=20.0)
HOSTILE = b"".join(PAGE.replace(b'engine="0"', b'engine="%d"' % rank) for rank in range(90))
TARGETS = 20


def cpu_s() -> float:
    """Of this thread, which runs the event loop; waiting for a busy machine does not count."""
    return time.thread_time()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage of the other tests meanwhile: it is a tenth of a second of CPU at any moment."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_one_hostile_target_of_twenty_does_not_hold_the_event_loop() -> None:
    began = cpu_s()
    totals(HOSTILE)
    alone_s = cpu_s() - began
    turns = list[float]()

    async def renew_leases() -> None:
        while True:
            began = cpu_s()
            await asyncio.sleep(0.001)
            turns.append(cpu_s() - began)

    async with AsyncExitStack() as stack:
        renewals = asyncio.create_task(renew_leases())
        received = []
        for number in range(TARGETS):
            pages = await stack.enter_async_context(page_server(PAGE if number else HOSTILE))
            fleet = Fleet({f"chat-{number}": pages.address})
            received.append(await stack.enter_async_context(run_sensor(EACH_SECOND, fleet)))
        for samples in received:
            await samples.next(EngineSample)
        renewals.cancel()
        with suppress(asyncio.CancelledError):
            await renewals

    assert max(turns) < alone_s / 2


async def test_an_expensive_page_is_read_less_often_and_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin, "CPU_SHARE", 0.3)
    with capture_logs() as logged:
        async with AsyncExitStack() as stack:
            hostile = await stack.enter_async_context(page_server(HOSTILE))
            well = await stack.enter_async_context(page_server())
            fleet = Fleet({"hostile": hostile.address, "well": well.address})
            received = await stack.enter_async_context(run_sensor(QUICK, fleet))
            await hostile.until_requested("/metrics", 4)
            requests = hostile.requests["/metrics"], well.requests["/metrics"]

    assert requests[1] > 2 * requests[0]
    assert [(line["event"], line["server"]) for line in logged] == [("vllm_metrics.slowed", "hostile")]
    assert received.states() == []
