"""Simulated servers for tests, in this process or as a separate process."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import ClientSession, web

from flettner.simulator.engine import SimulatedEngine
from flettner.simulator.flags import parse
from flettner.simulator.server import build_server


@dataclass(slots=True, kw_only=True)
class Running:
    url: str
    engine: SimulatedEngine


@asynccontextmanager
async def running(*argv: str) -> AsyncIterator[Running]:
    """Run a server in this process, twenty times as fast as its GPU."""
    flags = parse(["--model", "tiny", "--sim-jitter", "0", "--sim-speed", "20", *argv])
    engine, frontend = build_server(flags, now=lambda: 1_800_000_000.0)
    runner = web.AppRunner(frontend.app(), handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    steps = asyncio.create_task(engine.run())
    host, port = runner.addresses[0][:2]
    try:
        yield Running(url=f"http://{host}:{port}", engine=engine)
    finally:
        steps.cancel()
        with suppress(asyncio.CancelledError):
            await steps
        await runner.cleanup()


@dataclass(slots=True, kw_only=True)
class Process:
    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    url: str = ""

    async def wait_for(self, pattern: str) -> re.Match[str]:
        """Read the log up to a matching line; AssertionError if it ends first."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no line like {pattern!r} in:\n{''.join(self.lines)}")


@asynccontextmanager
async def process(*argv: str, ready: bool = True) -> AsyncIterator[Process]:
    """`python -m flettner.simulator.server` on a free port; killed at the end if it still runs."""
    command: Sequence[str] = (
        *(
            sys.executable,
            "-m",
            "flettner.simulator.server",
            "--model",
            "tiny",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
        ),
        *("--sim-start-s", "0.1", *argv),
    )
    started = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    server = Process(process=started)
    try:
        if ready:
            server.url = (await server.wait_for(r"server on (http://\S+)"))[1]
            await server.wait_for("Application startup complete")
        yield server
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def scrape(url: str) -> dict[str, float]:
    """Return samples by name and labels."""
    async with ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert response.status == 200
        lines = (await response.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def until(condition: object, *, within_s: float = 20.0) -> None:
    """Poll a callable until it is true."""
    assert callable(condition)
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.02)
