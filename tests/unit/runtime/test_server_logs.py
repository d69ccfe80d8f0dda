"""Who looks at a log: it is read once for all who do, and a reading that hangs holds up nobody for long."""

import asyncio

import pytest

from agent.domain.errors import ActError
from agent.domain.model import Server
from agent.runtime.server_logs import FRESH_S, LONGEST_S, ServerLogs
from tests.support.fake_engine import FakeEngine
from tests.support.fast_time import in_no_time

GREEN = Server(name="chat-r1", address="127.0.0.1:8101", setting={})


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(GREEN)
    engine.logs[GREEN.name] = ("loading", "loaded")
    return engine


def test_all_who_ask_at_once_are_told_by_one_reading(engine: FakeEngine) -> None:
    engine.log_takes_s = 0.2

    async def story() -> None:
        tails = ServerLogs(engine)

        told = await asyncio.gather(*(tails.of(GREEN) for _ in range(20)))

        assert told == [("loading", "loaded")] * 20
        assert engine.logs_read == 1

    in_no_time(story())


def test_it_is_read_again_after_a_moment(engine: FakeEngine) -> None:
    async def story() -> None:
        tails = ServerLogs(engine)
        await tails.of(GREEN)
        engine.logs[GREEN.name] = ("serving",)

        at_once = await tails.of(GREEN)
        await asyncio.sleep(FRESH_S)
        later = await tails.of(GREEN)

        assert (at_once, later) == (("loading", "loaded"), ("serving",))

    in_no_time(story())


def test_a_reading_that_hangs_keeps_nobody_waiting_and_is_not_begun_again(engine: FakeEngine) -> None:
    engine.log_takes_s = 3600

    async def story() -> None:
        tails, began = ServerLogs(engine), asyncio.get_running_loop().time()

        for _ in range(3):
            with pytest.raises(ActError, match=f"not there within {LONGEST_S:g} s"):
                await tails.of(GREEN)

        assert asyncio.get_running_loop().time() - began == 3 * LONGEST_S
        assert engine.logs_read == 1

    in_no_time(story())


def test_a_log_that_cannot_be_read_is_tried_again(engine: FakeEngine) -> None:
    engine.unreadable = "docker: the log of chat-r1: no Engine"

    async def story() -> None:
        tails = ServerLogs(engine)
        with pytest.raises(ActError, match="no Engine"):
            await tails.of(GREEN)

        engine.unreadable = ""
        await asyncio.sleep(FRESH_S)

        assert await tails.of(GREEN) == ("loading", "loaded")

    in_no_time(story())


def test_each_server_has_its_own(engine: FakeEngine) -> None:
    engine.logs["chat-r2"] = ("another",)

    async def story() -> None:
        tails = ServerLogs(engine)

        assert await tails.of(GREEN) == ("loading", "loaded")
        assert await tails.of(Server(name="chat-r2", setting={})) == ("another",)

    in_no_time(story())
