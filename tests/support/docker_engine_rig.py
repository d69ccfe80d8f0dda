"""Fixtures of the Docker engine tests: a site, an engine with short intervals, its leftovers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flettner.actuators.docker.engine import DockerEngine
from flettner.actuators.docker.plugin import DockerPlugin
from flettner.actuators.docker.registry import Registry, document_to_keep, site_labels
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.docker_site import Bench, RunningContainer

Json = dict[str, Any]


class EngineRig:
    """A site, and engines bound to it."""

    def __init__(self, bench: Bench, state_dir: Path) -> None:
        self.bench = bench
        self.site = Site(target="chat", state_dir=state_dir, epoch=1)
        self.adopted = f"{bench.prefix}vllm"

    def engine(
        self, *containers: str, epoch: int = 1, host: str = "", state_dir: Path | None = None
    ) -> DockerEngine:
        engine = DockerPlugin(
            containers=containers or (self.adopted,),
            host=host,
            health_every_s=0.1,
            health_timeout_s=0.5,
            lost_after=2,
            stop_s=5.0,
        )
        return engine.bind(replace(self.site, epoch=epoch, state_dir=state_dir or self.site.state_dir))

    async def adopt(
        self,
        *flags: str,
        **options: Any,  # noqa: ANN401
    ) -> tuple[RunningContainer, DockerEngine, Server]:
        """Start a container with these flags; return it, an engine that adopts it, and its server."""
        container = await self.bench.serving(*flags, **options)
        engine = self.engine()
        [blue] = await engine.observe()
        return container, engine, blue

    async def keep(
        self,
        *flags: str,
        env: Sequence[str] = (),
        binds: Sequence[str] = (),
        **host: Any,  # noqa: ANN401
    ) -> None:
        """Keep the record of a retired container with these flags."""
        image = await self.bench.simulator()
        body = {
            "Image": image.tag,
            "Cmd": list(flags),
            "Env": list(env),
            "HostConfig": {"Binds": [*image.binds, *binds], "Init": True, **host},
        }
        made = await self.bench.client.create(body, self.adopted)
        container = await self.bench.client.inspect(made)
        await self.bench.client.remove(made)
        assert container
        gone = replace(container, server=self.adopted, epoch=1, gone=True)
        self.registry.write(gone, document_to_keep(container, None))

    @property
    def registry(self) -> Registry:
        return Registry(client=self.bench.client, site=self.site, names=(self.adopted,))

    def change_kept(self, part: str, **to: Any) -> None:  # noqa: ANN401
        """Change `Config` or `HostConfig` of what is kept, so that the clones have it."""
        record = self.registry.load(self.adopted)
        assert record
        document = {**record.document, part: {**record.document[part], **to}}
        self.registry.update(self.adopted, document=document)

    async def left(self) -> dict[str, str]:
        """The containers of this site by name, each with its state."""
        summaries = await self.bench.client.list_containers(site_labels(self.site))
        return {summary["Names"][0].removeprefix("/"): summary["State"] for summary in summaries}

    async def policy(self, container: str) -> str:
        spec = await self.bench.client.inspect(container)
        assert spec
        return str(spec.restart_policy["Name"])

    async def tear_down(self) -> None:
        for summary in await self.bench.client.list_containers(site_labels(self.site)):
            await self.bench.client.remove(summary["Id"], volumes=True)


@asynccontextmanager
async def place(state_dir: Path) -> AsyncIterator[EngineRig]:
    async with Bench() as bench:
        here = EngineRig(bench, state_dir)
        try:
            yield here
        finally:
            await here.tear_down()


async def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.05)
