"""The bound Docker engine: launches, watches and ends the containers of one target."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from flettner.actuators.docker import dry_run
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.clone import find_obstacles
from flettner.actuators.docker.container import Container
from flettner.actuators.docker.diff import differences
from flettner.actuators.docker.lifecycle import Lifecycle
from flettner.actuators.docker.listener import find_foreign
from flettner.actuators.docker.mounted_files import find_socket
from flettner.actuators.docker.options import DockerOptions
from flettner.actuators.docker.preflight import Preflight, predict_saving
from flettner.actuators.docker.registry import Registry
from flettner.actuators.docker.sleep import Sleeper
from flettner.actuators.docker.upgrade import pin, upgraded
from flettner.actuators.docker.watch import Watch
from flettner.actuators.docker.way_back import describe_way_back
from flettner.actuators.host.cgroup import find_container_of
from flettner.actuators.vllm import control
from flettner.actuators.vllm.control import (
    ControlEndpoint,
    control_path,
    note_on_live_limits,
    remove_own_socket,
)
from flettner.actuators.vllm.engine import RECENT_LINES, VllmEngine
from flettner.actuators.vllm.fault import Fault, make_report
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Now, Site
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.vllm_facts.values import Setting


class DockerEngine(VllmEngine):
    """The containers of one target. A launched container is like its predecessor, except for its flags."""

    def __init__(self, options: DockerOptions, site: Site) -> None:
        super().__init__(site)
        self._options = options
        self._client = DockerClient(host=options.host)
        self._times = StartTimes.at(site.state_dir)
        self._registry = Registry(client=self._client, site=site, names=options.containers)
        self._lifecycle = Lifecycle(registry=self._registry, times=self._times, publish=options.publish)
        self.sleeper = Sleeper(lifecycle=self._lifecycle)

    async def problems(self) -> Sequence[str]:
        try:
            await self._client.version()
            containers = await self._registry.find()
            serving = any(container.active for container in containers.values())
            wrong: list[str] = []
            for name in self._options.containers:
                wrong += await self._find_problems(name, containers.get(name), serving=serving)
        except ActError as error:
            return [error.why]
        return wrong

    async def _find_problems(self, name: str, container: Container | None, *, serving: bool) -> list[str]:
        if container is not None and container.active:
            obstacles = find_obstacles(container, await self._client.image(container.image))
            return [f"containers: {name}: {problem}" for problem in obstacles]
        if serving or self._registry.was_ended(name):
            return []
        state = "there is no such container" if container is None else "it does not run"
        return [f"containers: {name}: {state}: start it, or correct the name (`docker ps` shows them)"]

    async def observe(self) -> Sequence[Server]:
        """Return our servers first. Each new container gets a record, to make it again when it is gone."""
        containers = (await self._registry.find()).values()
        running = [container for container in containers if container.active and not container.asleep]
        for container in running:
            with suppress(OSError):  # `flettner check` may have no permission to write
                await self._registry.keep(container)
        running.sort(key=lambda container: (not container.ours, container.server if container.ours else ""))
        return await self._with_hot_knobs([container.to_server() for container in running])

    async def way_back(self) -> list[str]:
        return describe_way_back(list((await self._registry.find()).values()), self._options.containers[0])

    async def start_home(self, server: Server, deadline_s: float) -> Server:
        """Make the operator's container again, with the flags of `server`. Idempotent; raises ActError."""
        container = (await self._registry.find_fenced()).get(server.name)
        if container is None:
            raise ActError(f"{server.name} has no container any more")
        return (await self._lifecycle.start_home(container, deadline_s)).to_server()

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        containers = await self._registry.find()
        missing = [server.name for server in servers if server.name not in containers]
        if missing or not servers:
            raise ActError(f"there is no container of {', '.join(missing) or 'this target'} to ask")
        blues = [containers[server.name] for server in servers]
        if wanted == "save":
            return predict_saving(blues, self._times)
        try:
            pinned = await pin(
                self._client, blues[-1], start, acts=self._site.acts, report=self._report_progress
            )
        except ActError as error:
            return PreflightResult(problem=error.why)
        finally:
            self.progress = ""
        templates = [await upgraded(self._client, blue, pinned.start) for blue in blues] if start else blues
        asked = Preflight(
            sleeper=self.sleeper,
            blues=blues,
            servers=servers,
            setting=setting,
            templates=templates,
            gpu=gpu,
        )
        result = await asked.predict(wanted)
        notes = (*pinned.notes, *result.notes, *note_on_live_limits(servers, setting))
        return replace(
            result,
            notes=notes,
            resolved={**pinned.resolved, **result.resolved},
            versions={**result.versions, **pinned.versions},
        )

    def _report_progress(self, text: str) -> None:
        self.progress = text

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """Launch a server; a second launch of it finds the container that the first has started."""
        async with self._lock(server.name):
            containers = await self._registry.find_fenced()
            await self._sweep(containers)
            if server.name in containers:
                await self._wake(containers[server.name])
            container = await self._lifecycle.launch(server, containers, deadline_s)
        template = None
        if container.like:
            template = containers.get(container.like) or self._registry.load(container.like)
        differs = differences(template, container) if template else ()
        launched = replace(container.to_server(), like=container.like or server.like, differs=differs)
        return (await self._with_hot_knobs([launched]))[0]

    async def _wake(self, container: Container) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        if await self.sleeper.wake(container):
            self._times.record_part(container.start_key, "wake", clock() - began_s)

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        container = await self._find(server)
        with self._times.timed(container.start_key if container else "", "warm_up"):
            await super().warm_up(server, requests, deadline_s, prompts, prefixes)

    async def log(self, server: Server) -> tuple[str, ...]:
        container = await self._find(server)
        return await self._client.read_log(container) if container else ()

    async def stop(self, server: Server, keep: int = 0) -> str:
        """Let the server sleep if it can, else end it; `launch` wakes it."""
        del keep  # a container has no replicas
        async with self._lock(server.name):
            container = (await self._registry.find_fenced()).get(server.name)
            if container is None:
                raise ActError(
                    f"{server.name} has no container any more: it cannot be stopped and started again"
                )
            try:
                with self._times.timed(container.start_key, "sleep"):
                    how = await self.sleeper.put_to_sleep(container)
            except ActError as error:
                with self._times.timed(container.start_key if container.active else "", "stop"):
                    await self._lifecycle.stop(container, self._options.stop_s)
                return f"{server.name} is stopped, since it cannot sleep: {error.why}"
            return f"{server.name} sleeps: {how}"

    async def retire(self, server: Server) -> None:
        async with self._lock(server.name):
            containers, control = await self._registry.find_fenced(), await self._control(server)
            await self._lifecycle.retire(server.name, containers, self._options.stop_s)
            remove_own_socket(control, server)
            await self._sweep({name: other for name, other in containers.items() if name != server.name})

    async def _sweep(self, containers: Mapping[str, Container]) -> None:
        """Remove leftovers. An error is ignored: the next launch or retirement tries again."""
        at_work = [name for name, lock in self._locks.items() if lock.locked()]
        with suppress(ActError):
            await self._lifecycle.sweep(containers, at_work)
            await dry_run.remove_leftovers(self._client, self._site)

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        report = make_report(server.name, emit, now)

        def was_ended() -> bool:
            return self._registry.was_ended(server.name)

        container_id = await self._registry.find_id(server.name)
        if not container_id:
            report(Fault("has no container any more", external=True), (), gone=True)
            return
        watch = Watch(
            client=self._client,
            container=container_id,
            address=server.address,
            every_s=self._options.health_every_s,
            timeout_s=self._options.health_timeout_s,
            misses=self._options.lost_after,
            report=report,
            adopted=not server.ours,
            was_ended=was_ended,
        )
        loss, log = await watch.until_gone()
        if not was_ended() and self._site.acts:
            await self._transfer_restart_policy(server.name)
        report(Fault("was ended by flettner") if was_ended() else loss, log, gone=True)

    async def _transfer_restart_policy(self, name: str) -> None:
        """Pass on the restart policy of a container that a third party removed: nobody retires it."""
        with suppress(ActError):
            containers = await self._registry.find_fenced()
            if name not in containers:
                await self._lifecycle.transfer_restart_policy(name, containers)

    async def newest_epoch(self) -> int:
        containers = (await self._registry.find()).values()
        running = [container.to_server() for container in containers if container.active]
        changed = control.newest_epoch(await self._with_hot_knobs(running))
        return max(self._registry.newest_epoch(containers), changed)

    async def _find(self, server: Server) -> Container | None:
        return (await self._registry.find()).get(server.name)

    async def _control(self, server: Server) -> ControlEndpoint | None:
        container = await self._find(server)
        path = control_path(container.env) if container else None
        if container is None or path is None:
            return None
        socket = await asyncio.to_thread(find_socket, container.mounts, path)
        return ControlEndpoint(socket, container.state.pid) if socket is not None else None

    async def _describe_process(self, pid: int) -> str:
        container_id = await asyncio.to_thread(find_container_of, pid)
        with suppress(ActError):
            if container_id and (container := await self._client.inspect(container_id)) is not None:
                return f"the container {container.name}"
        return await super()._describe_process(pid)

    async def check_address(self, server: Server) -> None:
        container = await self._find(server)
        if container is not None and (foreign := await find_foreign(self._client, container)):
            raise ActError(f"{server.name}: {foreign}: end that process")

    async def _api_key(self, server: Server) -> str:
        await self.check_address(server)
        container = await self._find(server)
        return container.serve.api_key if container else ""

    async def _recent_log(self, server: Server, lines: int = RECENT_LINES) -> Sequence[str]:
        container_id = await self._registry.find_id(server.name)
        return await self._client.tail(container_id, lines) if container_id else ()
