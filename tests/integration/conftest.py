"""Blue, green, an Envoy before them, and a client."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.actuators.host import ownership_env
from flettner.actuators.process.engine import ProcessEngine
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.ports import free_port
from tests.support.process_rig import SERVER, STUB, Bound, free_ports, site
from tests.support.sse_backend import Backend


@pytest.fixture
async def blue() -> AsyncIterator[Backend]:
    async with Backend("chat-r1") as backend:
        yield backend


@pytest.fixture
async def green() -> AsyncIterator[Backend]:
    async with Backend("chat-r2") as backend:
        yield backend


@pytest.fixture
def unbound() -> EnvoyPlugin:
    return EnvoyPlugin(listen=f"127.0.0.1:{free_port()}", report_every_s=0.25, hold_s=0.0)


@pytest.fixture
async def traffic(unbound: EnvoyPlugin, tmp_path: Path) -> AsyncIterator[EnvoyTraffic]:
    bound = unbound.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=3))
    yield bound
    await bound.stop()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield session


@pytest.fixture
async def bound(tmp_path: Path) -> AsyncIterator[Bound]:
    """Make engines of one site; stop their servers after the test."""

    def make(*flags: str, epoch: int = 1, **options: Any) -> ProcessEngine:  # noqa: ANN401 - any option
        options = {
            "command": (*STUB, *flags),
            "ports": free_ports(),
            "health_every_s": 0.1,
            "stop_s": 5.0,
            **options,
        }
        return ProcessPlugin(**options).bind(site(tmp_path, epoch))

    yield make
    last = make(epoch=99, stop_s=0.0)
    for name in list(ownership_env.marked(site(tmp_path))):
        await last.retire(Server(name=name, setting={}))
    assert ownership_env.members(site(tmp_path), SERVER.name) == []
