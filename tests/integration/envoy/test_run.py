"""Envoys that a program of their own runs: they outlive the daemon, and finish open requests at their end."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from actuators.envoy.plugin import EnvoyTraffic
from actuators.envoy.process import EnvoyProcess
from agent.domain.effects import Route
from agent.domain.ports import Site
from tests.support.sse_backend import Backend, ask, asked, free_port, until


@asynccontextmanager
async def runner(state_dir: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (
        sys.executable,
        "-m",
        "actuators.envoy.run",
        str(state_dir),
        "--leave-s",
        "0",
        "--drain-s",
        "20",
    )
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


def bind(state_dir: Path, epoch: int = 1) -> EnvoyTraffic:
    traffic = EnvoyTraffic(listen=f"127.0.0.1:{free_port()}", start=False)
    return traffic.bind(Site(target="chat", state_dir=state_dir / "chat", epoch=epoch))


def all_to(backend: Backend) -> Route:
    return Route(number=1, servers=(backend.server,), weights={backend.name: 100}, fallback=backend.name)


async def test_the_daemon_writes_the_files_and_the_runner_starts_envoy(tmp_path: Path) -> None:
    async with runner(tmp_path) as process, Backend("blue") as blue, aiohttp.ClientSession() as session:
        traffic = bind(tmp_path)
        await traffic.route(all_to(blue))
        pid = EnvoyProcess(traffic.home).find()

        assert await asked(session, traffic.listen, 10) == {"blue": 10}
        assert pid is not None
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert int(parent) == process.pid


async def test_an_envoy_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with runner(tmp_path), Backend("blue") as blue, aiohttp.ClientSession() as session:
        traffic = bind(tmp_path)
        await traffic.route(all_to(blue))
        await EnvoyProcess(traffic.home).kill()

        async def serves() -> bool:
            seen = await traffic.observe()
            return seen is not None and seen.listening

        await until(serves)
        await traffic.keep_alive(all_to(blue))

        assert await asked(session, traffic.listen, 10) == {"blue": 10}


async def test_open_requests_end_before_the_runner_does(tmp_path: Path) -> None:
    async with (
        runner(tmp_path) as process,
        Backend("blue", chunks=30, gap_s=0.1) as blue,
        aiohttp.ClientSession() as session,
    ):
        traffic = bind(tmp_path)
        await traffic.route(all_to(blue))
        stream = asyncio.create_task(ask(session, traffic.listen))

        async def is_open() -> bool:
            return await traffic.in_flight("blue") == 1

        await until(is_open)
        process.send_signal(signal.SIGTERM)

        assert (await stream).good
        assert await asyncio.wait_for(process.wait(), 30) == 0
        assert EnvoyProcess(traffic.home).find() is None
