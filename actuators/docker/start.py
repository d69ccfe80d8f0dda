"""Start a container like another one, or a stopped one again, and wait until it is healthy.

A failed start leaves no container, or the stopped one as it was.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from flettner.actuators.docker import discovery, snapshots, stop
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.clone import clone
from flettner.actuators.docker.diff import differences
from flettner.actuators.docker.discovery import FoundContainer
from flettner.actuators.docker.exit_diagnosis import (
    ObservedEvents,
    describe_exit,
    describe_restart,
    describe_silence,
    observe_events,
    read_log_if_possible,
    wait_for_last_event,
    was_ended_from_outside,
    with_fix,
)
from flettner.actuators.docker.image_name import find_image_name
from flettner.actuators.docker.labels import container_name, server_labels
from flettner.actuators.docker.preflight import start_key
from flettner.actuators.docker.spec import ContainerSpec, Json
from flettner.actuators.vllm import scheduler_class
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.primitives.sockets import find_free_port
from flettner.vllm_facts.errors import FlagError

_POLL_S = 0.25

Undo = Literal["remove", "stop", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTemplate:
    """The container that a new one is made like. `policy`: its restart policy, if it is gone."""

    server: str
    spec: ContainerSpec
    policy: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """`publish`: the address of this host on which new containers are published."""

    client: DockerClient
    site: Site
    times: StartTimes
    publish: str = "127.0.0.1"

    async def launch(self, server: Server, found: Mapping[str, FoundContainer], deadline_s: float) -> Server:
        """Return the healthy server with its address. Raises ActError; the container is then as before."""
        one = found.get(server.name)
        undo = self._choose_undo(one)
        if one is not None and undo == "remove" and not one.active:
            await self.client.remove(one.id)
            one = None
        try:
            async with asyncio.timeout(deadline_s):
                return await self._launch(server, one, found)
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

    def choose_template(self, server: Server, found: Mapping[str, FoundContainer]) -> StartTemplate:
        """Return the container of `server.like`, or its snapshot; else any other, adopted ones first."""
        kept = {one.server: one for one in snapshots.read_all(self.site)}
        others = [one.server for one in sorted(found.values(), key=lambda one: (one.ours, not one.active))]
        gone = sorted(kept, key=lambda name: kept[name].ours)
        for name in (server.like, *others, *gone):
            if name in found and name != server.name:
                return StartTemplate(server=name, spec=found[name].spec)
            if name in kept:
                return StartTemplate(server=name, spec=kept[name].to_spec(), policy=kept[name].policy)
        raise ActError(
            f"{server.name} cannot be made: the target has neither a container nor a snapshot of one: "
            "start the first one yourself"
        )

    async def _launch(
        self, server: Server, one: FoundContainer | None, found: Mapping[str, FoundContainer]
    ) -> Server:
        if one is None:
            template = self.choose_template(server, found)
            made = await self._create(server, template)
            began = asyncio.get_running_loop().time()
            spec = await self._wait_until_healthy(server.name, made, start=True)
            self._record_start(server, spec, asyncio.get_running_loop().time() - began)
            one = FoundContainer(server=server.name, ours=True, spec=spec)
            await stop.keep(self.client, self.site, one)
            if template.policy is not None:
                await stop.apply_restart_policy(self.client, self.site, one, template.policy)
            return replace(one.to_server(), like=template.server, differs=differences(template.spec, spec))
        one = replace(one, spec=await self._wait_until_healthy(server.name, one.id, start=not one.active))
        kept = snapshots.read_snapshot(self.site, server.name)
        if kept is not None and kept.stopped:
            await stop.apply_restart_policy(self.client, self.site, one, kept.policy)
            snapshots.update(self.site, server.name, stopped=False, epoch=self.site.epoch)
        return replace(one.to_server(), like=server.like or one.like, differs=self._differences(one, found))

    def _differences(self, one: FoundContainer, found: Mapping[str, FoundContainer]) -> tuple[str, ...]:
        """Return the differences from the container that it was made like, if that one is known."""
        kept = snapshots.read_snapshot(self.site, one.like) if one.like else None
        first = found[one.like].spec if one.like in found else kept.to_spec() if kept else None
        return differences(first, one.spec) if first else ()

    def _record_start(self, server: Server, spec: ContainerSpec, seconds: float) -> None:
        key = start_key(spec, spec.serve.setting)
        self.times.record(key, seconds, self.times.foreseen(key, server.setting))

    async def _create(self, server: Server, template: StartTemplate) -> str:
        setting = server.setting or template.spec.serve.setting
        wants_class = scheduler_class.is_missing(setting, template.spec.env)
        scheduler = await asyncio.to_thread(scheduler_class.write_folders, self.site) if wants_class else None
        request = clone(
            template.spec,
            name=container_name(self.site, server.name),
            labels=server_labels(self.site, replace(server, like=template.server)),
            setting=server.setting,
            host_port_ip=self.publish,
            port=find_free_port() if template.spec.network_mode == "host" else None,
            scheduler=scheduler,
        )
        name = await find_image_name(self.client, template.spec)
        try:
            made = await self.client.create({**request.body, "Image": name}, request.name)
            if not await self._has_image(made, request.image):  # the tag has moved in this second
                await self.client.remove(made)
                made = await self.client.create(request.body, request.name)
            for network, endpoint in request.networks:
                await self.client.connect(network, made, endpoint)
        except ActError as error:
            raise ActError(f"{server.name} cannot be made: {with_fix(error.why)}") from error
        return made

    async def _has_image(self, container: str, image: str) -> bool:
        spec = await self.client.inspect(container)
        return spec is not None and spec.image == image

    async def _wait_until_healthy(self, name: str, container: str, *, start: bool) -> ContainerSpec:
        """Return the container once /health answers. Raises ActError if it ends or restarts."""
        async with observe_events(self.client, container) as observed:
            if start:
                try:
                    await self.client.start(container)
                except ActError as error:
                    why = f"{name} cannot be started: {with_fix(error.why)}"
                    log = await self._log_of(container)
                    raise ActError(why, log, external=error.external) from error
            spec = await self.client.inspect(container)
            restarts = spec.restart_count if spec else 0
            while True:
                healthy = spec is not None and not await _why_unhealthy(spec)
                try:
                    spec = await self.client.inspect(container)
                except ActError:  # the Docker daemon is away: the server may get ready meanwhile
                    await asyncio.sleep(_POLL_S)
                    continue
                await self._check_running(name, spec, observed, restarts)
                if healthy and spec is not None:
                    return spec
                await asyncio.sleep(_POLL_S)

    async def _check_running(
        self, name: str, spec: ContainerSpec | None, observed: ObservedEvents, restarts: int
    ) -> None:
        if spec is not None and spec.restart_count > restarts:
            log = await read_log_if_possible(self.client, spec)
            raise ActError(f"{name} {describe_restart(spec, observed, log, restarts)}", log)
        if spec is None or not spec.state.running:
            await wait_for_last_event(observed)
            spec = await self.client.inspect(spec.id) if spec else None
            log = await read_log_if_possible(self.client, spec) if spec else ()
            external = was_ended_from_outside(spec, observed)
            raise ActError(f"{name} {describe_exit(spec, observed, log)}", log, external=external)
        if not spec.address:
            raise ActError(f"{name} has no address that this host reaches: connect it to a network")

    # Failed starts.

    def _choose_undo(self, one: FoundContainer | None) -> Undo:
        if one is None:
            return "remove"
        kept = snapshots.read_snapshot(self.site, one.server)
        if kept is not None and kept.stopped and kept.id == one.id:
            return "stop"
        if one.ours:
            return "remove"
        return "leave" if one.active else "stop"

    async def _clean_up(self, name: str, undo: Undo) -> str:
        """Undo the start. Return an addition to the reason: empty, or that the container remains.

        A create call may fail and make the container nevertheless, so the Engine is asked. A container that a
        newer daemon has seen running is left to that daemon.
        """
        kept = snapshots.read_snapshot(self.site, name)
        if undo == "leave" or (kept is not None and kept.epoch > self.site.epoch):
            return ""
        try:
            one = await self._find(name)
            if one is not None and undo == "stop":
                await stop.stop(self.client, self.site, one, 0)
            elif one is not None and one.ours:
                await stop.end(self.client, one, 0)
                await self.client.remove(one.id)
                snapshots.update(self.site, name, gone=True)
        except (ActError, OSError) as error:
            return f"; its container could not be removed: {error}"
        return ""

    async def _describe_delay(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return why the server is not healthy yet, and its last log lines."""
        with suppress(ActError):
            if (one := await self._find(name)) is not None:
                why = describe_silence(one.spec) or await _why_unhealthy(one.spec)
                return f": {why}", await read_log_if_possible(self.client, one.spec)
        return "", ()

    async def _find(self, name: str) -> FoundContainer | None:
        return (await discovery.find_containers(self.client, self.site, (name,))).get(name)

    async def _log_of(self, container: str) -> tuple[str, ...]:
        with suppress(ActError):
            if (spec := await self.client.inspect(container)) is not None:
                return await read_log_if_possible(self.client, spec)
        return ()


async def _why_unhealthy(spec: ContainerSpec) -> str:
    return (await OpenAiProbe(address=spec.address).health()).why if spec.address else "it has no address"
