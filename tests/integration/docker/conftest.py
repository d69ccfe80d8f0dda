"""A bench of containers, and engines over them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.docker_engine_rig import EngineRig, place
from tests.support.docker_site import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench() as bench:
        yield bench


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[EngineRig]:
    async with place(tmp_path) as rig:
        yield rig
