"""Run vLLM servers as Docker containers: each new one like the one it replaces, but for its flags."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self
from weakref import WeakValueDictionary

from actuators.docker import discovery, snapshots
from actuators.docker import stop as docker_end
from actuators.docker.client import DockerClient
from actuators.docker.discovery import FoundContainer
from actuators.docker.exit_diagnosis import log_of
from actuators.docker.obstacles import obstacles
from actuators.docker.preflight import preflight, start_key
from actuators.docker.start import Starter
from actuators.docker.watch import Watch
from actuators.host import discovery as host_discovery
from actuators.vllm import dry_run
from actuators.vllm.probe import OpenAiProbe
from actuators.vllm.start_times import StartTimes
from agent.domain.answers import GoldenAnswer
from agent.domain.errors import ActError
from agent.domain.events import ServerLost
from agent.domain.model import PreflightResult, Server, Strategy
from agent.domain.ports import Now, Site
from vllm_facts.values import Setting

_COMPILING_LINES = 1000  # of a log that are looked at for signs of compiling: its last seconds
_ASK_AGAIN_S = 2.0  # while Docker's daemon is away


@dataclass(frozen=True, kw_only=True)
class DockerEngine:
    """The fields without an underscore are the options of `[targets.engine]`."""

    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {"docker_events": ("host", "containers")}
    containers: tuple[str, ...] = ()  # names of those that serve already; several are one target's servers
    host: str = ""  # "unix:///run/trimtab/docker.sock"; empty: DOCKER_HOST, else Docker's own socket
    publish: str = "127.0.0.1"  # the address of this host on which new servers are reached
    stop_s: float = 30.0  # from the stop signal to SIGKILL
    health_every_s: float = 1.0
    health_timeout_s: float = 5.0  # a busy server's event loop stalls for seconds: shorter calls it hung
    lost_after: int = 10  # missed health probes in a row; with the above, a hung server is told in a minute
    _client: DockerClient = field(init=False, repr=False, compare=False)
    _site: Site | None = field(default=None, init=False, repr=False, compare=False)
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "containers", tuple(self.containers))  # TOML knows lists only
        object.__setattr__(self, "_client", DockerClient(host=self.host))
        if not self.containers or not all(self.containers):
            raise ValueError("say what serves: containers = ['vllm'], the names that `docker ps` shows")
        if len(set(self.containers)) != len(self.containers):
            raise ValueError("containers: each name once")
        if self.stop_s < 0 or self.health_every_s <= 0 or self.health_timeout_s <= 0 or self.lost_after < 1:
            raise ValueError(
                "stop_s is at least 0, health_every_s and health_timeout_s above 0, lost_after at least 1"
            )

    def bind(self, site: Site) -> Self:
        bound = replace(self)
        object.__setattr__(bound, "_site", site)
        return bound

    @staticmethod
    async def found_here() -> Sequence[host_discovery.DiscoveredServer]:
        """The containers that serve here, for a first config. Raises ActError when Docker cannot be asked."""
        return await host_discovery.containers(host="")

    async def problems(self) -> Sequence[str]:
        try:
            await self._client.version()
            found = await self._found()
            serving = any(one.active for one in found.values())
            wrong: list[str] = []
            for name in self.containers:
                wrong += await self._wrong(name, found.get(name), serving=serving)
        except ActError as error:
            return [error.why]
        return wrong

    async def observe(self) -> Sequence[Server]:
        """Ours first. What is found for the first time is kept, so that it can be made again."""
        running = [one for one in (await self._found()).values() if one.active]
        for one in running:
            with suppress(OSError):  # who only looks may not be allowed to write
                await docker_end.keep(self._client, self._bound, one)
        return [
            one.to_server()
            for one in sorted(running, key=lambda one: (not one.ours, one.server if one.ours else ""))
        ]

    async def preflight(
        self, servers: Sequence[Server], setting: Setting, wanted: Strategy | Literal["auto"]
    ) -> PreflightResult:
        found = await self._found()
        missing = [server.name for server in servers if server.name not in found]
        if missing or not servers:
            raise ActError(f"there is no container of {', '.join(missing) or 'this target'} to ask")
        blues = [found[server.name].spec for server in servers]
        return await preflight(self._client, self._bound, blues, servers, setting, wanted, self._times)

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """One launch of a name at a time: the next one finds what the first has started."""
        async with self._turn(server.name):
            found = await self._unfenced()
            await self._sweep(found)
            starter = Starter(client=self._client, site=self._bound, times=self._times, publish=self.publish)
            return await starter.launched(server, found, deadline_s)

    async def warm_up(
        self, server: Server, requests: int, deadline_s: float, prompts: Sequence[str] = ()
    ) -> None:
        container = await self._id_of(server.name)

        async def log() -> Sequence[str]:
            return await self._client.tail(container, _COMPILING_LINES) if container else ()

        await (await self._probe(server)).warm_up(requests, deadline_s, prompts, log)

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        return await (await self._probe(server)).answers(prompts, deadline_s)

    async def _probe(self, server: Server) -> OpenAiProbe:
        """With the key that `/v1` asks for."""
        if not server.address:
            raise ActError(f"{server.name} has no address: it was never launched")
        one = (await self._found()).get(server.name)
        return OpenAiProbe(address=server.address, api_key=one.spec.serve.api_key if one else "")

    async def busy(self, server: Server) -> int | None:
        return await OpenAiProbe(address=server.address).busy()

    async def log(self, server: Server) -> tuple[str, ...]:
        one = (await self._found()).get(server.name)
        return await log_of(self._client, one.spec) if one else ()

    async def stop(self, server: Server) -> None:
        async with self._turn(server.name):
            one = (await self._unfenced()).get(server.name)
            if one is None:
                raise ActError(f"{server.name} is not there any more: nothing is left to be started again")
            began = asyncio.get_running_loop().time()
            await docker_end.stop(self._client, self._bound, one, self.stop_s)
            if one.active:
                took_s = asyncio.get_running_loop().time() - began
                self._times.record_stop(start_key(one.spec, one.spec.serve.setting), took_s)

    async def retire(self, server: Server) -> None:
        async with self._turn(server.name):
            found = await self._unfenced()
            await docker_end.retire(self._client, self._bound, server.name, found, self.stop_s)
            await self._sweep({name: one for name, one in found.items() if name != server.name})

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        def tell(why: str, log: tuple[str, ...], *, gone: bool) -> None:
            why = f"{server.name} {why}"
            emit(ServerLost(at=now(), server=server.name, why=why, gone=gone, log=log))

        def ended() -> bool:
            kept = snapshots.read(self._bound, server.name)
            return kept is not None and (kept.stopped or kept.gone)

        container = await self._id_of(server.name)
        if not container:
            tell("is not there any more", (), gone=True)
            return
        watch = Watch(
            client=self._client,
            container=container,
            address=server.address,
            every_s=self.health_every_s,
            timeout_s=self.health_timeout_s,
            misses=self.lost_after,
            silent=lambda why, log: tell(why, log, gone=False),
            returns=lambda: not server.ours and not ended(),
        )
        why, log = await watch.until_gone()
        if not ended():
            await self._bequeathed(server.name)
        tell("was ended by trimtab" if ended() else why, log, gone=True)

    # What there is.

    @property
    def _bound(self) -> Site:
        if self._site is None:
            raise RuntimeError("bind the engine to a site first")
        return self._site

    @property
    def _times(self) -> StartTimes:
        return StartTimes.at(self._bound.state_dir)

    async def _found(self) -> Mapping[str, FoundContainer]:
        return await discovery.of_target(self._client, self._bound, self.containers)

    async def _unfenced(self) -> Mapping[str, FoundContainer]:
        found = await self._found()
        discovery.fence(self._bound, found.values())
        return found

    async def _id_of(self, name: str) -> str:
        """Empty when there is none. While Docker's daemon is away, the one that is remembered; if any is."""
        while True:
            try:
                one = (await self._found()).get(name)
            except ActError:
                kept = snapshots.read(self._bound, name)
                if kept is not None and not kept.gone:
                    return kept.id
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                return one.id if one else ""

    async def _bequeathed(self, name: str) -> None:
        """One that somebody has removed is never retired: who is in its place inherits from it now."""
        with suppress(ActError):
            found = await self._unfenced()
            kept = snapshots.read(self._bound, name)
            if kept is not None and name not in found:
                await docker_end.bequeath(self._client, self._bound, kept, found)

    async def _wrong(self, name: str, one: FoundContainer | None, *, serving: bool) -> list[str]:
        if one is None or not one.active:
            kept = snapshots.read(self._bound, name)
            if serving or (kept is not None and (kept.stopped or kept.gone)):
                return []
            state = "there is no such container" if one is None else "it does not run"
            return [f"containers: {name}: {state}: start it, or correct the name (`docker ps` shows them)"]
        found = obstacles(one.spec, await self._client.image(one.spec.image))
        return [f"containers: {name}: {problem}" for problem in found]

    # Taking turns.

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def _sweep(self, found: Mapping[str, FoundContainer]) -> None:
        """What cannot be removed now is, the next time."""
        at_work = [name for name, turn in self._turns.items() if turn.locked()]
        with suppress(ActError):
            await docker_end.sweep(self._client, self._bound, found, at_work)
            await dry_run.tidy(self._client, self._bound)


plugin = DockerEngine
