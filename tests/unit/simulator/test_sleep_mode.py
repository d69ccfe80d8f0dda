"""Sleep mode of the simulated server."""

import asyncio
import os

import pytest
from aiohttp import ClientSession

from flettner.actuators.vllm.sleep import SleepMode
from flettner.agent.domain.errors import ActError
from flettner.vllm_facts.closed_routes import DEV_MODE
from tests.unit.simulator.running import running

BODY = {"prompt": "a", "max_tokens": 2}


@pytest.fixture(autouse=True)
def development(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, DEV_MODE, "1")


async def test_a_request_waits_until_the_server_is_awake() -> None:
    async with running() as server, ClientSession() as session:
        mode = SleepMode(server.url.removeprefix("http://"))
        await mode.sleep()
        request = asyncio.create_task(session.post(f"{server.url}/v1/completions", json=BODY))
        await asyncio.sleep(0.2)
        waits = not request.done()

        await mode.wake()
        answer = await request

    assert waits
    assert answer.status == 200


async def test_sleeping_and_waking_are_idempotent() -> None:
    async with running() as server:
        mode = SleepMode(server.url.removeprefix("http://"))

        await mode.wake()
        await mode.sleep()
        await mode.sleep()
        await mode.wake()


async def test_a_refused_sleep_is_an_error_with_the_status() -> None:
    async with running("--sim-fault", "*:sleep_refused") as server:
        with pytest.raises(ActError, match="500 Internal Server Error"):
            await SleepMode(server.url.removeprefix("http://")).sleep()


async def test_a_failed_wake_is_an_error_with_the_status() -> None:
    async with running("--sim-fault", "*:wake_fails") as server:
        mode = SleepMode(server.url.removeprefix("http://"))
        await mode.sleep()

        with pytest.raises(ActError, match="500 Internal Server Error"):
            await mode.wake()


async def test_without_development_mode_there_are_no_such_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(os.environ, DEV_MODE)
    async with running() as server:
        with pytest.raises(ActError, match="404"):
            await SleepMode(server.url.removeprefix("http://")).sleep()
