"""An Envoy that a Runner starts, and that finishes its open requests at its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from flettner.actuators.envoy.options import EnvoyOptions
from flettner.actuators.envoy.process import EnvoyProcess, find_binary
from flettner.actuators.envoy.runner import Runner
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.ports import Site
from tests.integration.envoy.steps import alone, until_open
from tests.support.ports import free_port
from tests.support.sse_backend import Backend, ask, count_answers, until


@asynccontextmanager
async def runner(state_dir: Path) -> AsyncIterator[Runner]:
    binary = find_binary("")
    assert binary is not None
    runner = Runner(state_dir, binary, concurrency=2)

    async def keep() -> None:
        while True:
            runner.start_missing()
            await asyncio.sleep(0.1)

    keeping = asyncio.create_task(keep())
    try:
        yield runner
    finally:
        keeping.cancel()
        await runner.end(leave_s=0, drain_s=20)


def bind(state_dir: Path) -> EnvoyTraffic:
    options = EnvoyOptions(listen=f"127.0.0.1:{free_port()}")
    return EnvoyTraffic(options, Site(target="chat", state_dir=state_dir / "chat", epoch=1), starts=False)


async def test_an_envoy_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with runner(tmp_path), Backend("blue") as blue, aiohttp.ClientSession() as session:
        traffic = bind(tmp_path)
        await traffic.route(alone(blue))
        await EnvoyProcess(traffic.home).kill()

        async def serves() -> bool:
            seen = await traffic.observe()
            return seen is not None and seen.listening

        await until(serves)
        await traffic.keep_alive(alone(blue))

        assert await count_answers(session, traffic.listen, 10) == {"blue": 10}


async def test_open_requests_end_before_the_runner_does(tmp_path: Path) -> None:
    traffic = bind(tmp_path)
    async with Backend("blue", chunks=30, gap_s=0.1) as blue, aiohttp.ClientSession() as session:
        async with runner(tmp_path):
            await traffic.route(alone(blue))
            stream = asyncio.create_task(ask(session, traffic.listen))
            await until_open(traffic, "blue", 1)

        assert (await stream).good
        assert EnvoyProcess(traffic.home).find() is None
