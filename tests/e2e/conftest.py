from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from tests.e2e.docker_rig import DockerRig, DockerSiteConfig
from tests.support.config_builder import SiteConfig
from tests.support.docker_site import Bench, RunningContainer
from tests.support.own_dockerd import OwnEngine
from tests.support.rig import Rig


class Start(Protocol):
    async def __call__(self, site_config: SiteConfig, /, *words: str) -> Rig: ...


class StartDocker(Protocol):
    async def __call__(self, site_config: DockerSiteConfig, /, *blue: RunningContainer) -> DockerRig: ...


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Start]:
    """Make sites with a running daemon and `words` on its command line; remove everything after the test."""
    made: list[Rig] = []

    async def start(site_config: SiteConfig, /, *words: str) -> Rig:
        home = tmp_path / str(len(made))
        home.mkdir()
        rig = Rig(home=home, site_config=site_config)
        made.append(rig)
        rig.prepare()
        await rig.start(*words)
        return rig

    yield start
    for rig in made:
        await rig.tear_down()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench() as bench:
        yield bench


@pytest.fixture
async def engine() -> AsyncIterator[OwnEngine]:
    async with OwnEngine() as engine:
        yield engine


@pytest.fixture
async def own_bench(engine: OwnEngine) -> AsyncIterator[Bench]:
    async with Bench(engine.host) as bench:
        yield bench


@pytest.fixture
async def docker_site(tmp_path: Path, bench: Bench) -> AsyncIterator[StartDocker]:
    """Make sites that serve from running containers; the bench removes these after the test."""
    made: list[DockerRig] = []

    async def start(site_config: DockerSiteConfig, /, *blue: RunningContainer) -> DockerRig:
        names = site_config.containers or tuple(container.name for container in blue)
        site_config = replace(site_config, containers=names)
        home = tmp_path / str(len(made))
        made.append(DockerRig(home=home, site_config=site_config, bench=bench, blue=blue))
        await made[-1].begin()
        return made[-1]

    yield start
    for rig in made:
        await rig.tear_down()
