"""The bound Docker engine: launches, watches and ends the containers of one target."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from flettner.actuators.docker import discovery, dry_run, snapshots
from flettner.actuators.docker import stop as docker_end
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.discovery import FoundContainer
from flettner.actuators.docker.exit_diagnosis import read_log
from flettner.actuators.docker.mounted_files import find_socket
from flettner.actuators.docker.obstacles import find_obstacles
from flettner.actuators.docker.options import DockerOptions
from flettner.actuators.docker.preflight import preflight, start_key
from flettner.actuators.docker.sleep import Sleeper
from flettner.actuators.docker.start import Starter
from flettner.actuators.docker.watch import Diagnosis, Watch
from flettner.actuators.host.cgroup import find_container_of
from flettner.actuators.vllm import control
from flettner.actuators.vllm.control import (
    ControlEndpoint,
    control_path,
    note_on_live_limits,
    remove_own_socket,
)
from flettner.actuators.vllm.engine import RECENT_LINES, VllmEngine
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Now, Site
from flettner.agent.retrying import retry
from flettner.vllm_facts.values import Setting

_RETRY_S = 2.0  # while the Docker daemon is away


class DockerEngine(VllmEngine):
    """The containers of one target. A launched one is like the one it replaces, except for its flags."""

    def __init__(self, options: DockerOptions, site: Site) -> None:
        super().__init__(site)
        self._options = options
        self._client = DockerClient(host=options.host)
        self._times = StartTimes.at(site.state_dir)
        self.sleeper = Sleeper(client=self._client, site=site)

    async def problems(self) -> Sequence[str]:
        try:
            await self._client.version()
            found = await self._find()
            serving = any(one.active for one in found.values())
            wrong: list[str] = []
            for name in self._options.containers:
                wrong += await self._container_problems(name, found.get(name), serving=serving)
        except ActError as error:
            return [error.why]
        return wrong

    async def observe(self) -> Sequence[Server]:
        """Return our servers first. Each new container gets a snapshot, to make it again when it is gone."""
        running = [one for one in (await self._find()).values() if one.active and not one.asleep]
        for one in running:
            with suppress(OSError):  # `flettner check` may have no permission to write
                await docker_end.keep(self._client, self._site, one)
        ours_first = sorted(running, key=lambda one: (not one.ours, one.server if one.ours else ""))
        return await self._with_hot_knobs([one.to_server() for one in ours_first])

    async def preflight(
        self, servers: Sequence[Server], setting: Setting, wanted: Strategy | Literal["auto"]
    ) -> PreflightResult:
        found = await self._find()
        missing = [server.name for server in servers if server.name not in found]
        if missing or not servers:
            raise ActError(f"there is no container of {', '.join(missing) or 'this target'} to ask")
        blues = [found[server.name].spec for server in servers]
        result = await preflight(
            self._client, self._site, blues, servers, setting, wanted, self._times, self.sleeper
        )
        return replace(result, notes=(*result.notes, *note_on_live_limits(servers, setting)))

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """A second launch of the same server finds the one that the first has started."""
        async with self._lock(server.name):
            found = await self._find_fenced()
            await self._sweep(found)
            if server.name in found:
                await self._wake(found[server.name])
            starter = Starter(
                client=self._client, site=self._site, times=self._times, publish=self._options.publish
            )
            launched = await starter.launch(server, found, deadline_s)
        return (await self._with_hot_knobs([launched]))[0]

    async def _control(self, server: Server) -> ControlEndpoint | None:
        one = (await self._find()).get(server.name)
        path = control_path(one.spec.env) if one else None
        if one is None or path is None:
            return None
        found = await asyncio.to_thread(find_socket, one.spec.mounts, path)
        return ControlEndpoint(found, one.spec.state.pid) if found is not None else None

    async def _describe_process(self, pid: int) -> str:
        container = await asyncio.to_thread(find_container_of, pid)
        with suppress(ActError):
            if container and (spec := await self._client.inspect(container)) is not None:
                return f"the container {spec.name}"
        return await super()._describe_process(pid)

    async def _api_key(self, server: Server) -> str:
        one = (await self._find()).get(server.name)
        return one.spec.serve.api_key if one else ""

    async def _recent_log(self, server: Server, lines: int = RECENT_LINES) -> Sequence[str]:
        container = await self._find_id(server.name)
        return await self._client.tail(container, lines) if container else ()

    async def warm_up(
        self, server: Server, requests: int, deadline_s: float, prompts: Sequence[str] = ()
    ) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        await super().warm_up(server, requests, deadline_s, prompts)
        if (one := (await self._find()).get(server.name)) is not None:
            key = start_key(one.spec, one.spec.serve.setting)
            self._times.record_part(key, "warm_up", clock() - began)

    async def log(self, server: Server) -> tuple[str, ...]:
        one = (await self._find()).get(server.name)
        return await read_log(self._client, one.spec) if one else ()

    async def stop(self, server: Server, keep: int = 0) -> str:
        """Let it sleep if it can, else end it. A sleeping one is woken by `launch`."""
        del keep  # a container has no replicas
        async with self._lock(server.name):
            one = (await self._find_fenced()).get(server.name)
            if one is None:
                raise ActError(
                    f"{server.name} has no container any more: it cannot be stopped and started again"
                )
            clock = asyncio.get_running_loop().time
            began, key = clock(), start_key(one.spec, one.spec.serve.setting)
            try:
                how = await self.sleeper.put_to_sleep(one)
            except ActError as error:
                how = f"{one.server} is stopped, since it cannot sleep: {error.why}"
            else:
                self._times.record_part(key, "sleep", clock() - began)
                return f"{one.server} sleeps: {how}"
            began = clock()
            await docker_end.stop(self._client, self._site, one, self._options.stop_s)
            if one.active:
                self._times.record_part(key, "stop", clock() - began)
            return how

    async def _wake(self, one: FoundContainer) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        if await self.sleeper.wake(one):
            self._times.record_part(start_key(one.spec, one.spec.serve.setting), "wake", clock() - began)

    async def retire(self, server: Server) -> None:
        async with self._lock(server.name):
            found, control = await self._find_fenced(), await self._control(server)
            await docker_end.retire(self._client, self._site, server.name, found, self._options.stop_s)
            remove_own_socket(control, server)
            await self._sweep({name: one for name, one in found.items() if name != server.name})

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        def report(found: Diagnosis, log: tuple[str, ...], *, gone: bool) -> None:
            why, external = f"{server.name} {found.why}", found.external
            emit(ServerLost(at=now(), server=server.name, why=why, gone=gone, log=log, external=external))

        def was_ended() -> bool:
            kept = snapshots.read_snapshot(self._site, server.name)
            return kept is not None and (kept.stopped or kept.gone)

        container = await self._find_id(server.name)
        if not container:
            report(Diagnosis("has no container any more", external=True), (), gone=True)
            return
        watch = Watch(
            client=self._client,
            container=container,
            address=server.address,
            every_s=self._options.health_every_s,
            timeout_s=self._options.health_timeout_s,
            misses=self._options.lost_after,
            on_silence=lambda found, log: report(found, log, gone=False),
            adopted=not server.ours,
            was_ended=was_ended,
        )
        found, log = await watch.until_gone()
        if not was_ended() and self._site.acts:
            await self._transfer_restart_policy(server.name)
        report(Diagnosis("was ended by flettner") if was_ended() else found, log, gone=True)

    async def newest_epoch(self) -> int:
        found = (await self._find()).values()
        running = await self._with_hot_knobs([one.to_server() for one in found if one.active])
        return max(discovery.newest_epoch(self._site, found), control.newest_epoch(running))

    async def _find(self) -> Mapping[str, FoundContainer]:
        return await discovery.find_containers(self._client, self._site, self._options.containers)

    async def _find_fenced(self) -> Mapping[str, FoundContainer]:
        found = await self._find()
        discovery.check_fence(self._site, found.values())
        return found

    async def _find_id(self, name: str) -> str:
        """Return the id of its container; empty: none. From the snapshot while the Engine is away."""

        async def find() -> str:
            try:
                container = (await self._find()).get(name)
            except ActError:
                snapshot = snapshots.read_snapshot(self._site, name)
                if snapshot is None or snapshot.gone:
                    raise
                return snapshot.id
            return container.id if container else ""

        finding = AsyncRetrying(retry=retry_if_exception_type(ActError), wait=wait_fixed(_RETRY_S))
        return await retry(finding, find)

    async def _transfer_restart_policy(self, name: str) -> None:
        """For a container that a third party removed: `retire` is never called for it."""
        with suppress(ActError):
            found = await self._find_fenced()
            kept = snapshots.read_snapshot(self._site, name)
            if kept is not None and name not in found:
                await docker_end.transfer_restart_policy(self._client, self._site, kept, found)

    async def _container_problems(self, name: str, one: FoundContainer | None, *, serving: bool) -> list[str]:
        if one is None or not one.active:
            kept = snapshots.read_snapshot(self._site, name)
            if serving or (kept is not None and (kept.stopped or kept.gone)):
                return []
            state = "there is no such container" if one is None else "it does not run"
            return [f"containers: {name}: {state}: start it, or correct the name (`docker ps` shows them)"]
        found = find_obstacles(one.spec, await self._client.image(one.spec.image))
        return [f"containers: {name}: {problem}" for problem in found]

    async def _sweep(self, found: Mapping[str, FoundContainer]) -> None:
        """Remove leftovers. An error is ignored: the next launch or retirement tries again."""
        at_work = [name for name, lock in self._locks.items() if lock.locked()]
        with suppress(ActError):
            await docker_end.sweep(self._client, self._site, found, at_work)
            await dry_run.remove_leftovers(self._client, self._site)
