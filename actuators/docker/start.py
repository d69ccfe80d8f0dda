"""Start a container like another one, or one again that we stopped, and see it healthy; or leave nothing."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from actuators.docker import discovery, snapshots, stop
from actuators.docker.client import DockerClient
from actuators.docker.clone import clone
from actuators.docker.diff import differs
from actuators.docker.discovery import FoundContainer
from actuators.docker.exit_diagnosis import (
    ObservedEvents,
    fate,
    hearing,
    last_lines,
    refusal,
    starts_again,
    told,
    why_silent,
)
from actuators.docker.labels import container_name, labels_of
from actuators.docker.preflight import start_key
from actuators.docker.spec import ContainerSpec, Json
from actuators.vllm.probe import OpenAiProbe
from actuators.vllm.start_times import StartTimes
from agent.domain.errors import ActError
from agent.domain.model import Server
from agent.domain.ports import Site
from vllm_facts.errors import FlagError

_POLL_S = 0.25

Undo = Literal["remove", "stop", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTemplate:
    """What a container is made like. `policy`: its restart policy, when it is not there to hand it on."""

    server: str
    spec: ContainerSpec
    policy: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """`publish`: the address of this host at which new containers are published."""

    client: DockerClient
    site: Site
    times: StartTimes
    publish: str = "127.0.0.1"

    async def launched(
        self, server: Server, found: Mapping[str, FoundContainer], deadline_s: float
    ) -> Server:
        """Healthy, with its address. Raises ActError; it is then as it was: gone, or stopped."""
        one = found.get(server.name)
        undo = self._undo_of(one)
        if one is not None and undo == "remove" and not one.active:
            await self.client.remove(one.id)
            one = None
        try:
            async with asyncio.timeout(deadline_s):
                return await self._launched(server, one, found)
        except TimeoutError as error:
            why, log = await self._late(server.name)
            why = f"{server.name} was not healthy within {deadline_s:g} s{why}"
            raise ActError(why + await self._undone(server.name, undo), log) from error
        except ActError as error:
            raise ActError(error.why + await self._undone(server.name, undo), error.log) from error
        except (FlagError, OSError) as error:
            why = f"{server.name} cannot be started: {error}"
            raise ActError(why + await self._undone(server.name, undo)) from error
        except BaseException:
            await self._undone(server.name, undo)
            raise

    def pattern(self, server: Server, found: Mapping[str, FoundContainer]) -> StartTemplate:
        """The one it shall be like, or what is kept of it; else what serves here, somebody else's first."""
        kept = {one.server: one for one in snapshots.every(self.site)}
        others = [one.server for one in sorted(found.values(), key=lambda one: (one.ours, not one.active))]
        gone = sorted(kept, key=lambda name: kept[name].ours)
        for name in (server.like, *others, *gone):
            if name in found and name != server.name:
                return StartTemplate(server=name, spec=found[name].spec)
            if name in kept:
                return StartTemplate(server=name, spec=kept[name].parsed(), policy=kept[name].policy)
        raise ActError(
            f"{server.name} cannot be made: none of the target's containers is there, and nothing is kept of "
            "one: start the first one yourself"
        )

    async def _launched(
        self, server: Server, one: FoundContainer | None, found: Mapping[str, FoundContainer]
    ) -> Server:
        if one is None:
            pattern = self.pattern(server, found)
            made = await self._made(server, pattern)
            began = asyncio.get_running_loop().time()
            spec = await self._healthy(server.name, made, start=True)
            self._remember(server, spec, asyncio.get_running_loop().time() - began)
            one = FoundContainer(server=server.name, ours=True, spec=spec)
            await stop.keep(self.client, self.site, one)
            if pattern.policy is not None:
                await stop.hand_on(self.client, self.site, one, pattern.policy)
            return replace(one.to_server(), like=pattern.server, differs=differs(pattern.spec, spec))
        one = replace(one, spec=await self._healthy(server.name, one.id, start=not one.active))
        kept = snapshots.read(self.site, server.name)
        if kept is not None and kept.stopped:
            await stop.hand_on(self.client, self.site, one, kept.policy)
            snapshots.change(self.site, server.name, stopped=False, epoch=self.site.epoch)
        return replace(one.to_server(), like=server.like or one.like, differs=self._differs(one, found))

    def _differs(self, one: FoundContainer, found: Mapping[str, FoundContainer]) -> tuple[str, ...]:
        """From the one it was made like, as far as that is known."""
        kept = snapshots.read(self.site, one.like) if one.like else None
        first = found[one.like].spec if one.like in found else kept.parsed() if kept else None
        return differs(first, one.spec) if first else ()

    def _remember(self, server: Server, spec: ContainerSpec, seconds: float) -> None:
        key = start_key(spec, spec.serve.setting)
        self.times.record(key, seconds, self.times.foreseen(key, server.setting))

    async def _made(self, server: Server, pattern: StartTemplate) -> str:
        request = clone(
            pattern.spec,
            name=container_name(self.site, server.name),
            labels=labels_of(self.site, replace(server, like=pattern.server)),
            setting=server.setting,
            host_port_ip=self.publish,
            port=_free_port() if pattern.spec.network_mode == "host" else None,
        )
        try:
            made = await self.client.create(request.body, request.name)
            for network, endpoint in request.networks:
                await self.client.connect(network, made, endpoint)
        except ActError as error:
            raise ActError(f"{server.name} cannot be made: {refusal(error.why)}") from error
        return made

    async def _healthy(self, name: str, container: str, *, start: bool) -> ContainerSpec:
        """Return the container once /health answers. Raises ActError if it ends or restarts."""
        async with hearing(self.client, container) as heard:
            if start:
                try:
                    await self.client.start(container)
                except ActError as error:
                    why = f"{name} cannot be started: {refusal(error.why)}"
                    raise ActError(why, await self._tail(container)) from error
            spec = await self.client.inspect(container)
            restarts = spec.restart_count if spec else 0
            while True:
                healthy = spec is not None and not await _why_unhealthy(spec)
                try:
                    spec = await self.client.inspect(container)
                except ActError:  # Docker's daemon is away: the server may get ready all the same
                    await asyncio.sleep(_POLL_S)
                    continue
                await self._still_there(name, spec, heard, restarts)
                if healthy and spec is not None:
                    return spec
                await asyncio.sleep(_POLL_S)

    async def _still_there(
        self, name: str, spec: ContainerSpec | None, heard: ObservedEvents, restarts: int
    ) -> None:
        if spec is not None and spec.restart_count > restarts:
            log = await last_lines(self.client, spec)
            raise ActError(f"{name} {starts_again(spec, heard, log, restarts)}", log)
        if spec is None or not spec.state.running:
            await told(heard)
            spec = await self.client.inspect(spec.id) if spec else None
            log = await last_lines(self.client, spec) if spec else ()
            raise ActError(f"{name} {fate(spec, heard, log)}", log)
        if not spec.address:
            raise ActError(f"{name} has no address that this host reaches: connect it to a network")

    # When it fails.

    def _undo_of(self, one: FoundContainer | None) -> Undo:
        if one is None:
            return "remove"
        kept = snapshots.read(self.site, one.server)
        if kept is not None and kept.stopped and kept.id == one.id:
            return "stop"
        if one.ours:
            return "remove"
        return "leave" if one.active else "stop"

    async def _undone(self, name: str, undo: Undo) -> str:
        """What to add to the reason: empty, or what is left.

        Looks for what there is: a create may have failed, and the container is there all the same. One that
        a newer daemon has seen running is that one's to end.
        """
        kept = snapshots.read(self.site, name)
        if undo == "leave" or (kept is not None and kept.epoch > self.site.epoch):
            return ""
        try:
            one = await self._mine(name)
            if one is not None and undo == "stop":
                await stop.stop(self.client, self.site, one, 0)
            elif one is not None and one.ours:
                await stop.end(self.client, one, 0)
                await self.client.remove(one.id)
                snapshots.change(self.site, name, gone=True)
        except (ActError, OSError) as error:
            return f"; and its container is still there: {error}"
        return ""

    async def _late(self, name: str) -> tuple[str, tuple[str, ...]]:
        """What more there is to say of one that is not ready in time; its last lines."""
        with suppress(ActError):
            if (one := await self._mine(name)) is not None:
                why = why_silent(one.spec) or await _why_unhealthy(one.spec)
                return f": {why}", await last_lines(self.client, one.spec)
        return "", ()

    async def _mine(self, name: str) -> FoundContainer | None:
        return (await discovery.of_target(self.client, self.site, (name,))).get(name)

    async def _tail(self, container: str) -> tuple[str, ...]:
        with suppress(ActError):
            if (spec := await self.client.inspect(container)) is not None:
                return await last_lines(self.client, spec)
        return ()


async def _why_unhealthy(spec: ContainerSpec) -> str:
    return (await OpenAiProbe(address=spec.address).health()).why if spec.address else "it has no address"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
