"""A complete site over real containers, with the containers before and after the changes of flettner."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

from flettner.actuators.docker.client import Json
from flettner.actuators.docker.registry import site_labels
from flettner.agent.audit import chain
from flettner.agent.domain.ports import Site
from flettner.clients.docker.labels import SERVER
from flettner.simulator.traffic import Load, TrafficGenerator
from tests.support.config_builder import TARGET, SiteConfig
from tests.support.docker_site import PORT, Bench, RunningContainer
from tests.support.own_dockerd import OwnEngine
from tests.support.rig import Document, Rig, lost, until

# As slow as a real server: sixteen clients must not use the complete machine.
FLAGS = ("--sim-start-s", "0.5", "--sim-speed", "1", "--max-num-seqs", "8")
STREAMS = Load(streams=16)
SOME = Load(rate=6.0)
CUT = {"truncated", "failed"}  # after some tokens or after the headers, which vLLM sends at once


@dataclass(frozen=True, kw_only=True)
class DockerSiteConfig(SiteConfig):
    """`containers`: to adopt, by name. `host`: address of the Engine or of a proxy in front of it."""

    containers: tuple[str, ...] = ()
    host: str = ""
    publish: str = "127.0.0.1"
    strategy: str = "auto"
    health_timeout_s: float = 1.0
    steps: tuple[tuple[int, int, float], ...] = ((50, 8, 0.5),)

    def engine(self) -> str:
        return f"""
            kind = "docker"
            containers = {dumps(list(self.containers))}
            host = "{self.host}"
            publish = "{self.publish}"
            strategy = "{self.strategy}"
            health_every_s = 0.3
            health_timeout_s = {self.health_timeout_s}
            lost_after = 10
            stop_s = 5.0
        """


@dataclass(kw_only=True)
class DockerRig(Rig):
    """`blue`: the initial containers. The bench removes its containers and their clones."""

    bench: Bench
    blue: Sequence[RunningContainer] = field(default=())
    patience_s: float = 150.0  # three slots are changed one by one

    async def begin(self) -> None:
        """Start proxy and daemon; return when the site serves, in advise mode at once."""
        self.home.mkdir(exist_ok=True)
        self.prepare()
        await self.start()
        if self.site_config.mode != "advise":
            await self.serving()

    async def serving(self) -> Document:
        """Wait until all servers share the traffic, no rollout runs, and Envoy has the same split."""
        at_rest = partial(all_at_rest, len(self.blue))
        target: Document = await until(self.target, at_rest, "all servers at rest", self.patience_s)
        wanted = {server["name"]: server["weight"] for server in target["servers"]}
        await until(self.weights, wanted.__eq__, f"the split {wanted}")
        return target

    async def switch_proposed(self, **to: object) -> tuple[Document, Document]:
        """Propose a change and approve it; return its suggestion, and its rollout once that has ended."""
        suggestion = await self.propose(**to)
        await self.approve(suggestion)
        return suggestion, await self.ended(str(suggestion["id"]))

    async def until_in_audit(self, text: str) -> None:
        """Wait for the audit: the note of the target has only the latest event."""
        await until(partial(asyncio.to_thread, self.named_in_audit, text), bool, f"{text!r} in the audit")

    async def consistent_servers(self) -> list[str]:
        """Return the servers; assert one running container for each, no other, and a valid journal."""
        document = await self.serving()
        names = sorted(server["name"] for server in document["servers"])
        await until(self.running, names.__eq__, f"nothing but {names} to run")
        adopted = {container.name for container in self.blue}
        mine = {name for name in names if name not in adopted}
        await until(self.made, mine.__eq__, f"nothing of flettner's to be left but {mine}")
        verified = chain.verify(self.journal)
        assert verified.ok, verified
        return names

    # The containers.

    async def running(self) -> list[str]:
        """By the name of their servers."""
        containers = await self.containers()
        return sorted(name for name, inspect in containers.items() if inspect["State"]["Running"])

    async def made(self) -> set[str]:
        """The servers whose containers flettner has made, running or not; a check by its own name."""
        site = Site(target=TARGET, state_dir=self.marked, epoch=0)
        summaries = await self.bench.client.list_containers(site_labels(site))
        return {summary["Labels"].get(SERVER) or summary["Names"][0] for summary in summaries}

    async def containers(self) -> dict[str, Json]:
        """Inspect documents of all containers of this bench, by server name."""
        documents = {}
        for name in await self.bench.names():
            container = await self.bench.client.inspect(name)
            if container is not None:
                documents[container.labels.get(SERVER, name)] = container.document
        return documents

    async def container(self, server: str) -> Json:
        return (await self.containers())[server]

    # Clients.

    @asynccontextmanager
    async def users(self, load: Load = STREAMS, timeout_s: float = 90.0) -> AsyncIterator[TrafficGenerator]:
        async with self.clients(load=load, timeout_s=timeout_s) as traffic:
            yield traffic

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[list[int]]:
        """Sample the number of running containers that have a share in Envoy."""
        seen: list[int] = []

        async def sample() -> None:
            while True:
                weights = await self.weights()
                seen.append(
                    len({name for name, weight in weights.items() if weight} & {*await self.running()})
                )
                await asyncio.sleep(0.1)

        task = asyncio.create_task(sample())
        try:
            yield seen
        finally:
            assert not task.done(), task.exception()
            task.cancel()
            await asyncio.wait({task})

    # Teardown.

    async def tear_down(self) -> None:
        if self.daemon is not None and self.daemon.returncode is None:
            self.daemon.kill()
            await self.daemon.wait()
        await self.envoy.kill()


def all_at_rest(servers: int, target: Document) -> bool:
    """Whether `servers` servers share the traffic equally and no rollout runs."""
    if not target or target["phase"] not in {"observing", "proposed", "cooldown"}:
        return False
    weights = [server["weight"] or 0 for server in target["servers"]]
    return len(weights) == servers and sum(weights) == 100 and max(weights) - min(weights) <= 1


async def all_is_well(rig: DockerRig) -> None:
    async with rig.users(SOME) as traffic:
        await until_ok(traffic, 5)
    assert lost(traffic) == []


async def until_ok(traffic: TrafficGenerator, count: int) -> None:
    """Wait for `count` good answers since the start of the traffic."""

    async def ended_well() -> int:
        return traffic.tally.outcomes["ok"]

    await until(ended_well, count.__le__, f"{count} good answers")


@asynccontextmanager
async def own_site(
    home: Path,
    site_config: DockerSiteConfig,
    bench: Bench,
    engine: OwnEngine,
    *flags: str,
    host: Json | None = None,
    **options: Any,  # noqa: ANN401 - of the container
) -> AsyncIterator[DockerRig]:
    """A site over a container of an Engine that the test may kill."""
    bindings = {PORT: [{"HostIp": engine.address, "HostPort": "20000"}]}
    host = {**(host or {}), "PortBindings": bindings}
    blue = await bench.run(*FLAGS, *flags, port=None, restart="always", host=host, **options)
    blue = replace(blue, address=f"{engine.address}:20000")
    await bench.healthy(blue)
    site_config = replace(site_config, containers=(blue.name,), host=engine.host, publish=engine.address)
    rig = DockerRig(home=home, site_config=site_config, bench=bench, blue=[blue])
    await rig.begin()
    yield rig
    await rig.tear_down()
