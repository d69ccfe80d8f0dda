"""Blue, green, an Envoy before them, and a client."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from actuators.envoy import EnvoyTraffic
from agent.ports import Site
from tests.sse_backend import Backend, free_port


@pytest.fixture
async def blue() -> AsyncIterator[Backend]:
    async with Backend("chat-r1") as backend:
        yield backend


@pytest.fixture
async def green() -> AsyncIterator[Backend]:
    async with Backend("chat-r2") as backend:
        yield backend


@pytest.fixture
def unbound() -> EnvoyTraffic:
    return EnvoyTraffic(listen=f"127.0.0.1:{free_port()}", report_every_s=0.25)


@pytest.fixture
async def traffic(unbound: EnvoyTraffic, tmp_path: Path) -> AsyncIterator[EnvoyTraffic]:
    bound = unbound.bind(Site(target="chat", state_dir=tmp_path, epoch=3))
    yield bound
    await bound.stop()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield session
