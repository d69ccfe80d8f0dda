"""A bench of containers, and engines over them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.docker_engine_rig import EngineRig, place
from tests.support.docker_site import Bench
from tests.support.docker_socket import EngineSocket


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench() as bench:
        yield bench


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[EngineRig]:
    async with place(tmp_path) as rig:
        yield rig


@pytest.fixture
async def docker_socket() -> AsyncIterator[EngineSocket]:
    """Docker's socket as a test may close and open it."""
    async with EngineSocket() as socket:
        yield socket
