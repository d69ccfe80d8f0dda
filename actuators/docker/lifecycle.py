"""Start a container like another one, or a stopped one again; stop it, or remove it for good.

A failed start leaves no container, or the stopped one as it was. The record of a container says that it is
stopped before it ends, and that it serves only once it does, so that another daemon can go on at any point.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.clone import CreateRequest, clone, find_image_name
from flettner.actuators.docker.container import NEVER, Container, Json, is_restarting
from flettner.actuators.docker.exit_diagnosis import (
    ObservedEvents,
    describe_exit,
    describe_restart,
    observe_events,
    wait_for_last_event,
    was_ended_from_outside,
    with_fix,
)
from flettner.actuators.docker.listener import find_foreign
from flettner.actuators.docker.registry import Registry, container_name, server_labels
from flettner.actuators.docker.upgrade import upgraded
from flettner.actuators.docker.way_back import restore
from flettner.actuators.host.memory import until_freed
from flettner.actuators.vllm import scheduler_class
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.primitives.sockets import find_free_port
from flettner.vllm_facts.errors import FlagError

_POLL_S = 0.25
_ENDED_WITHIN_S = 30.0  # after SIGKILL: the kernel needs seconds to free the memory of a GPU

Undo = Literal["remove", "stop", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """`publish`: the address of this host on which new containers are published."""

    registry: Registry
    times: StartTimes
    publish: str = "127.0.0.1"

    @property
    def client(self) -> DockerClient:
        return self.registry.client

    @property
    def site(self) -> Site:
        return self.registry.site

    # Start.

    async def launch(
        self, server: Server, containers: Mapping[str, Container], deadline_s: float
    ) -> Container:
        """Return the container of the server once it is healthy. Raises ActError; it is then as before."""
        container = containers.get(server.name)
        others = {name: other for name, other in containers.items() if name != server.name}
        undo = _choose_undo(container)
        if container is not None and undo == "remove" and not container.active:
            await self.client.remove(container.id)
            container = None
        try:
            async with asyncio.timeout(deadline_s):
                if container is None:
                    return await self._start_new(server, others)
                return await self._start_again(container)
        except TimeoutError as error:
            why, log = await self._describe_delay(server.name)
            why = f"{server.name} was not healthy within {deadline_s:g} s{why}"
            raise ActError(why + await self._clean_up(server.name, undo), log) from error
        except ActError as error:
            raise ActError(error.why + await self._clean_up(server.name, undo), error.log) from error
        except (FlagError, OSError) as error:
            why = f"{server.name} cannot be started: {error}"
            raise ActError(why + await self._clean_up(server.name, undo)) from error
        except BaseException:
            await self._clean_up(server.name, undo)
            raise

    async def _start_new(self, server: Server, others: Mapping[str, Container]) -> Container:
        template = await upgraded(self.client, self._choose_template(server, others), server.start)
        created = await self._create(server, template)
        began_s = asyncio.get_running_loop().time()
        healthy = await self._wait_until_healthy(server.name, created, start=True)
        took_s, key = asyncio.get_running_loop().time() - began_s, healthy.start_key
        self.times.record(key, took_s, self.times.foreseen(key, server.setting))
        made = replace(healthy, server=server.name, ours=True, like=template.server)
        await self.registry.keep(made)
        if template.server not in others:  # it is gone, so no `retire` lets the new one inherit its policy
            await self._apply_restart_policy(made, template.policy)
        return made

    async def _start_again(self, container: Container) -> Container:
        healthy = await self._wait_until_healthy(container.server, container.id, start=not container.active)
        started = container.seen_as(healthy)
        if started.stopped:
            await self._apply_restart_policy(started, started.policy)
            self.registry.update(container.server, stopped=False, epoch=self.site.epoch)
        return started

    async def start_home(self, container: Container, deadline_s: float) -> Container:
        """Make the operator's container again, with the flags of `container`, and return it healthy.

        One that an earlier call has made is returned. Raises ActError; then the new container is removed.
        """
        former = self._find_former(container)
        there = await self.client.inspect(former.name)
        if there is not None and there.active:
            if there.serve.setting != container.serve.setting:
                raise ActError(f"the container {former.name} runs with other flags: stop it first")
            return replace(there, server=former.server)
        created = ""
        try:
            request = restore(container, former)
            if there is not None:
                await self.client.remove(there.id)  # stopped by flettner; its name is needed
            created = await self._create_container(request, container)
            async with asyncio.timeout(deadline_s):
                healthy = await self._wait_until_healthy(former.name, created, start=True)
        except (ActError, FlagError, TimeoutError) as error:
            if created:
                await self.client.remove(created)
            why = getattr(error, "why", "") or str(error) or f"it was not healthy within {deadline_s:g} s"
            raise ActError(
                f"your container {former.name} was not made again: {with_fix(why)}", getattr(error, "log", ())
            ) from error
        home = replace(healthy, server=former.server, ours=False)
        await self.registry.keep(home)
        return home

    def _find_former(self, container: Container) -> Container:
        """Return the operator's container from which `container` descends, by its record."""
        former: Container | None = container
        while former is not None and former.ours:
            former = self.registry.load(former.like)
        if former is None:
            raise ActError(f"there is no record of the container that {container.name} was made like")
        return former

    def _choose_template(self, server: Server, others: Mapping[str, Container]) -> Container:
        """Return the container of `server.like` or its record; else any container, adopted first."""
        existing = sorted(others.values(), key=lambda container: (container.ours, not container.active))
        recorded = sorted(self.registry.load_all(), key=lambda container: container.ours)
        for name in (server.like, *(container.server for container in (*existing, *recorded))):
            if template := others.get(name) or self.registry.load(name):
                return template
        raise ActError(
            f"{server.name} cannot be made: the target has neither a container nor a record of one: "
            "start the first one yourself"
        )

    async def _create(self, server: Server, template: Container) -> str:
        """Return the id of a new container that is like the template, and does not run yet."""
        setting = server.setting or template.serve.setting
        wants_class = scheduler_class.is_missing(setting, template.env)
        scheduler = await asyncio.to_thread(scheduler_class.write_folders, self.site) if wants_class else None
        request = clone(
            template,
            name=container_name(self.site, server.name),
            labels=server_labels(self.site, replace(server, like=template.server)),
            setting=server.setting,
            host_port_ip=self.publish,
            port=find_free_port() if template.network_mode == "host" else None,
            scheduler=scheduler,
        )
        try:
            return await self._create_container(request, template)
        except ActError as error:
            raise ActError(f"{server.name} cannot be made: {with_fix(error.why)}") from error

    async def _create_container(self, request: CreateRequest, template: Container) -> str:
        image_name = await find_image_name(self.client, template)
        created = await self.client.create({**request.body, "Image": image_name}, request.name)
        container = await self.client.inspect(created)
        if container is None or container.image != request.image:  # the tag has moved in this second
            await self.client.remove(created)
            created = await self.client.create(request.body, request.name)
        for network, endpoint in request.networks:
            await self.client.connect(network, created, endpoint)
        return created

    async def _wait_until_healthy(self, server: str, container_id: str, *, start: bool) -> Container:
        """Return the container once /health answers. Raises ActError if it ends or restarts."""
        async with observe_events(self.client, container_id) as observed:
            if start:
                try:
                    await self.client.start(container_id)
                except ActError as error:
                    why = f"{server} cannot be started: {with_fix(error.why)}"
                    log = await self.client.read_log_if_possible(await self._inspect(container_id))
                    raise ActError(why, log, external=error.external) from error
            container = await self.client.inspect(container_id)
            restarts = container.restart_count if container else 0
            while True:
                healthy = container is not None and not await _why_unhealthy(container)
                if healthy and container is not None and (why := await find_foreign(self.client, container)):
                    raise ActError(f"{why}, in place of {server}: end that process", external=True)
                try:
                    container = await self.client.inspect(container_id)
                except ActError:  # the Docker daemon is away: the server may get ready meanwhile
                    await asyncio.sleep(_POLL_S)
                    continue
                await self._check_running(server, container, observed, restarts)
                if healthy and container is not None:
                    return container
                await asyncio.sleep(_POLL_S)

    async def _check_running(
        self, server: str, container: Container | None, observed: ObservedEvents, restarts: int
    ) -> None:
        if container is not None and container.restart_count > restarts:
            log = await self.client.read_log_if_possible(container)
            raise ActError(f"{server} {describe_restart(container, observed, log, restarts)}", log)
        if container is None or not container.state.running:
            await wait_for_last_event(observed)
            ended = await self.client.inspect(container.id) if container else None
            log = await self.client.read_log_if_possible(ended)
            external = was_ended_from_outside(ended, observed)
            raise ActError(f"{server} {describe_exit(ended, observed, log)}", log, external=external)
        if not container.address:
            raise ActError(f"{server} has no address that this host reaches: connect it to a network")

    async def _describe_delay(self, server: str) -> tuple[str, tuple[str, ...]]:
        """Return why the server is not healthy yet, and its last log lines."""
        with suppress(ActError):
            if (container := (await self.registry.find()).get(server)) is not None:
                why = container.silence or await _why_unhealthy(container)
                return f": {why}", await self.client.read_log_if_possible(container)
        return "", ()

    async def _clean_up(self, server: str, undo: Undo) -> str:
        """Undo the start. Return an addition to the reason: empty, or that the container remains.

        A create call may fail and make the container nevertheless, so the Engine is asked. A container that a
        newer daemon has seen running is left to that daemon.
        """
        if undo == "leave":
            return ""
        try:
            container = (await self.registry.find()).get(server)
            if container is None or container.epoch > self.site.epoch:
                return ""
            if undo == "stop":
                await self.stop(container, 0)
            elif container.ours:
                await self.end(container, 0)
                await self.client.remove(container.id)
                self.registry.update(server, gone=True)
        except (ActError, OSError) as error:
            return f"; its container could not be removed: {error}"
        return ""

    async def _inspect(self, container_id: str) -> Container | None:
        with suppress(ActError):
            return await self.client.inspect(container_id)
        return None

    # End.

    async def stop(self, container: Container, grace_s: float) -> None:
        """End the container; only `launch` starts it again."""
        if container.auto_remove:
            raise ActError(
                f"{container.server} was started with --rm, so a stop would remove it and make a rollback "
                "impossible: start it without --rm"
            )
        await self.registry.keep(container)
        self.registry.update(container.server, stopped=True, epoch=self.site.epoch)
        await self.end(container, grace_s)
        self.registry.update(container.server, asleep_since="")

    async def retire(self, server: str, containers: Mapping[str, Container], grace_s: float) -> None:
        """Remove the container; its successor inherits its restart policy.

        A container of docker compose is stopped only: compose fails if one of its containers is missing.
        """
        container = containers.get(server)
        if container is None:
            await self.transfer_restart_policy(server, containers)
            self.registry.update(server, gone=True, epoch=self.site.epoch)
            return
        await self.registry.keep(container)
        await self.transfer_restart_policy(server, containers)
        self.registry.update(server, stopped=True, epoch=self.site.epoch)
        await self.end(container, grace_s)
        if container.ours or not container.compose_project:
            await self.client.remove(container.id)
            self.registry.update(server, stopped=False, gone=True)

    async def transfer_restart_policy(self, server: str, containers: Mapping[str, Container]) -> None:
        """Give the restart policy of this server to the running containers that were made like it."""
        if (retired := containers.get(server) or self.registry.load(server)) is not None:
            for successor in containers.values():
                if successor.like == server and successor.active:
                    await self._apply_restart_policy(successor, retired.policy)

    async def _apply_restart_policy(self, successor: Container, policy: Json) -> None:
        """Set the policy first and then write the record, so that a repetition has the same result."""
        if is_restarting(policy) and successor.restart_policy != policy and not successor.auto_remove:
            await self.client.restart_policy(successor.id, policy)
            await self.registry.keep(successor)
            self.registry.update(successor.server, policy=policy)

    async def end(self, container: Container, grace_s: float) -> None:
        """Return when the container has ended, its memory is free, and Docker will not start it again.

        A paused container, or one without grace, gets SIGKILL at once: a loading server ignores SIGTERM. vLLM
        measures the free memory as it starts and gives up if memory is freed meanwhile, hence the wait.
        """
        await self.disable_restarts(container)
        if not container.active:
            return
        if container.state.paused or grace_s <= 0:
            await self.client.kill(container.id)
        else:
            await self.client.stop(container.id, grace_s)
        try:
            async with asyncio.timeout(_ENDED_WITHIN_S):
                await self.client.wait(container.id)
        except TimeoutError as error:
            why = f"{container.server} still runs {_ENDED_WITHIN_S:g} s after SIGKILL: look at the driver"
            raise ActError(why) from error
        await wait_for_gpu_memory(self.client, container)

    async def disable_restarts(self, container: Container) -> None:
        if container.restarts and not container.auto_remove:
            await self.client.restart_policy(container.id, dict(NEVER))

    async def sweep(self, containers: Mapping[str, Container], wanted: Collection[str]) -> None:
        """Remove containers of ours that do not run, and are neither wanted nor kept for a rollback."""
        for name, container in containers.items():
            if container.ours and not container.active and name not in wanted and not container.stopped:
                if (record := self.registry.load(name)) is not None and record.id == container.id:
                    self.registry.update(name, gone=True)
                await self.client.remove(container.id)
        self.registry.prune()


async def wait_for_gpu_memory(client: DockerClient, container: Container) -> None:
    """Return when no more memory of its GPUs is freed; at once if it has none, or if they are elsewhere."""
    if container.gpus.any and client.is_local:
        await until_freed()


def _choose_undo(container: Container | None) -> Undo:
    if container is None:
        return "remove"
    if container.stopped:
        return "stop"
    if container.ours:
        return "remove"
    return "leave" if container.active else "stop"


async def _why_unhealthy(container: Container) -> str:
    if not container.address:
        return "it has no address"
    return (await OpenAiProbe(address=container.address).health()).why
