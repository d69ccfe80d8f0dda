"""Concurrent requests for a log share one read, and a hanging read delays no request for long."""

import asyncio

import pytest

from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.runtime.server_logs import FRESH_S, LONGEST_S, ServerLogs
from tests.support.fake_engine import FakeEngine
from tests.support.fast_time import in_no_time

GREEN = Server(name="chat-r1", address="127.0.0.1:8101", setting={})


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(GREEN)
    engine.logs[GREEN.name] = ("loading", "loaded")
    return engine


def test_concurrent_requests_share_one_read(engine: FakeEngine) -> None:
    engine.log_takes_s = 0.2

    async def scenario() -> None:
        logs = ServerLogs(engine)

        lines = await asyncio.gather(*(logs.read(GREEN) for _ in range(20)))

        assert lines == [("loading", "loaded")] * 20
        assert engine.logs_read == 1

    in_no_time(scenario())


def test_the_log_is_read_again_after_a_second(engine: FakeEngine) -> None:
    async def scenario() -> None:
        logs = ServerLogs(engine)
        await logs.read(GREEN)
        engine.logs[GREEN.name] = ("serving",)

        at_once = await logs.read(GREEN)
        await asyncio.sleep(FRESH_S)
        later = await logs.read(GREEN)

        assert (at_once, later) == (("loading", "loaded"), ("serving",))

    in_no_time(scenario())


def test_a_hanging_read_times_out_and_is_not_started_twice(engine: FakeEngine) -> None:
    engine.log_takes_s = 3600

    async def scenario() -> None:
        logs, began = ServerLogs(engine), asyncio.get_running_loop().time()

        for _ in range(3):
            with pytest.raises(ActError, match=f"takes more than {LONGEST_S:g} s"):
                await logs.read(GREEN)

        assert asyncio.get_running_loop().time() - began == 3 * LONGEST_S
        assert engine.logs_read == 1

    in_no_time(scenario())


def test_an_unreadable_log_is_retried(engine: FakeEngine) -> None:
    engine.unreadable = "docker: the log of chat-r1: no Engine"

    async def scenario() -> None:
        logs = ServerLogs(engine)
        with pytest.raises(ActError, match="no Engine"):
            await logs.read(GREEN)

        engine.unreadable = ""
        await asyncio.sleep(FRESH_S)

        assert await logs.read(GREEN) == ("loading", "loaded")

    in_no_time(scenario())


def test_each_server_has_its_own_log(engine: FakeEngine) -> None:
    engine.logs["chat-r2"] = ("another",)

    async def scenario() -> None:
        logs = ServerLogs(engine)

        assert await logs.read(GREEN) == ("loading", "loaded")
        assert await logs.read(Server(name="chat-r2", setting={})) == ("another",)

    in_no_time(scenario())
