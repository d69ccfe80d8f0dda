"""The routes of sleep mode in real vLLM. On the CPU they answer as on a GPU, and free nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.process.engine import ProcessEngine
from flettner.actuators.vllm.sleep import SleepMode
from flettner.agent.domain.model import Server
from flettner.vllm_facts.closed_routes import DEV_MODE
from flettner.vllm_facts.flag_parser import parse_setting
from tests.support.real_vllm import real_engine

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ProcessEngine]:
    async with real_engine(tmp_path, "--max-num-seqs", "2", **{DEV_MODE: "1"}) as engine:
        yield engine


async def test_a_drained_server_sleeps_and_wakes(engine: ProcessEngine) -> None:
    setting = parse_setting(engine._options.command)
    server = await engine.launch(Server(name="chat-r1", setting=setting), 900)
    mode = SleepMode(server.address)

    await mode.sleep()
    await mode.sleep()
    busy = await engine.busy(server)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{server.address}/health") as answer,
    ):
        healthy = answer.status
    await mode.wake()
    await mode.wake()
    await engine.warm_up(server, 2, 300)

    assert (busy, healthy) == (0, 200)
