"""flettner's scheduler inside real vLLM on the CPU: limits change while requests run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.flag_parser import parse_setting
from tests.support.process_rig import free_ports
from tests.support.real_vllm import ENVIRONMENT, REPOSITORY, real_vllm

pytestmark = pytest.mark.timeout(1200)

FLAGS = ("--max-num-seqs", "16", "--max-num-active-seqs", "2")
CLASS = ("--scheduler-cls", "flettner_vllm.scheduler.Scheduler")
STREAMS, TOKENS, CHANGES = 16, 40, 6


class HotServer:
    def __init__(self, address: str, session: aiohttp.ClientSession, control: aiohttp.ClientSession) -> None:
        self.address, self.session, self.control = address, session, control
        self.answered, self.wrong = 0, list[str]()

    async def set(self, n: int, lease_s: float, **values: float) -> dict[str, Any]:
        document = {"number": [1, n], "values": values, "lease_s": lease_s}
        async with self.control.put("http://engine/knobs", json=document) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    async def show(self) -> dict[str, Any]:
        async with self.control.get("http://engine/knobs") as answer:
            return dict(await answer.json())

    async def running(self) -> float:
        async with self.session.get(f"http://{self.address}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))

    async def stream(self, number: int, stop: asyncio.Event) -> None:
        body = {"model": "tiny", "prompt": f"Say {number}. " * 8, "max_tokens": TOKENS, "ignore_eos": True}
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        while not stop.is_set():
            async with self.session.post(f"http://{self.address}/v1/completions", json=streamed) as answer:
                text = await answer.text()
            whole = f'"completion_tokens":{TOKENS}' in text and text.endswith("data: [DONE]\n\n")
            self.answered += 1
            self.wrong += [] if whole else [text[-200:]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[HotServer]:
    path = tmp_path / "chat-r1.sock"  # each server has its own, beside the one named
    command = real_vllm().command(*FLAGS, *CLASS)
    env = {**ENVIRONMENT, "PYTHONPATH": str(REPOSITORY), "FLETTNER_CONTROL": str(tmp_path / "control.sock")}
    engine = ProcessPlugin(command=command, env=env, ports=free_ports(), stop_s=30.0).bind(
        Site(target="chat", state_dir=tmp_path, epoch=1)
    )
    launched = await engine.launch(Server(name="chat-r1", setting=parse_setting(command)), 900)
    async with (
        aiohttp.ClientSession() as session,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as control,
    ):
        yield HotServer(launched.address, session, control)
    await engine.retire(launched)


@asynccontextmanager
async def load(server: HotServer) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as streams:
        for number in range(STREAMS):
            streams.create_task(server.stream(number, stop))
        yield
        stop.set()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():
        await asyncio.sleep(0.02)


async def test_the_cap_moves_under_load_without_a_lost_request_and_ends_with_its_lease(
    server: HotServer,
) -> None:
    async def is_high() -> bool:
        return await server.running() > 10

    async def is_low() -> bool:
        return await server.running() <= 2

    async def has_no_lease() -> bool:
        return (await server.show())["lease_left_s"] is None

    async def is_high_on_a_lease() -> bool:
        await server.set(100, 1, max_num_seqs=16, max_num_scheduled_tokens=64)
        return await is_high()

    assert (await server.show())["in_force"]["max_num_seqs"] == 2
    async with load(server):
        await until(is_low)
        for change in range(CHANGES):
            await server.set(2 * change + 1, 600, max_num_seqs=16)
            await until(is_high)
            await server.set(2 * change + 2, 600, max_num_seqs=2)
            await until(is_low)
        await until(is_high_on_a_lease)
        await until(has_no_lease)
        await until(is_low)

    assert (await server.show())["in_force"] == (await server.show())["start"]
    assert server.answered >= STREAMS
    assert server.wrong == []
