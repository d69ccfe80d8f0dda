"""Start a container like another one, or one again that we stopped, and see it healthy; or leave nothing."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from actuators.docker import discovery, snapshots, stop
from actuators.docker.client import DockerClient, Json
from actuators.docker.clone import clone
from actuators.docker.diff import differs
from actuators.docker.discovery import FoundContainer, address_of, files_of
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
    inspect: Json
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
        if one is not None and undo == "remove" and not one.running:
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
        others = [one.server for one in sorted(found.values(), key=lambda one: (one.ours, not one.running))]
        gone = sorted(kept, key=lambda name: kept[name].ours)
        for name in (server.like, *others, *gone):
            if name in found and name != server.name:
                return StartTemplate(server=name, inspect=found[name].inspect)
            if name in kept:
                return StartTemplate(server=name, inspect=kept[name].spec, policy=kept[name].policy)
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
            inspect = await self._healthy(server.name, made, start=True)
            self._remember(server, inspect, asyncio.get_running_loop().time() - began)
            one = FoundContainer(server=server.name, ours=True, inspect=inspect)
            await stop.keep(self.client, self.site, one)
            if pattern.policy is not None:
                await stop.hand_on(self.client, self.site, one, pattern.policy)
            return replace(one.seen(), like=pattern.server, differs=differs(pattern.inspect, inspect))
        inspect = await self._healthy(server.name, one.id, start=not one.running)
        one = replace(one, inspect=inspect)
        kept = snapshots.read(self.site, server.name)
        if kept is not None and kept.stopped:
            await stop.hand_on(self.client, self.site, one, kept.policy)
            snapshots.change(self.site, server.name, stopped=False, epoch=self.site.epoch)
        return replace(one.seen(), like=server.like or one.like, differs=self._differs(one, found))

    def _differs(self, one: FoundContainer, found: Mapping[str, FoundContainer]) -> tuple[str, ...]:
        """From the one it was made like, as far as that is known."""
        kept = snapshots.read(self.site, one.like) if one.like else None
        first = found[one.like].inspect if one.like in found else kept.spec if kept else None
        return differs(first, one.inspect) if first else ()

    def _remember(self, server: Server, inspect: Json, seconds: float) -> None:
        key = start_key(inspect, discovery.setting_of(inspect))
        self.times.record(key, seconds, self.times.foreseen(key, server.setting))

    async def _made(self, server: Server, pattern: StartTemplate) -> str:
        spec = clone(
            pattern.inspect,
            name=container_name(self.site, server.name),
            labels=labels_of(self.site, replace(server, like=pattern.server)),
            setting=server.setting,
            host_port_ip=self.publish,
            port=_free_port() if _in_hosts_network(pattern.inspect) else None,
            files=files_of(pattern.inspect),
        )
        try:
            made = await self.client.create(spec.body, spec.name)
            for network, endpoint in spec.networks:
                await self.client.connect(network, made, endpoint)
        except ActError as error:
            raise ActError(f"{server.name} cannot be made: {refusal(error.why)}") from error
        return made

    async def _healthy(self, name: str, container: str, *, start: bool) -> Json:
        """Its inspect, once /health answers. Raises ActError when it ends, or starts over and over."""
        async with hearing(self.client, container) as heard:
            if start:
                try:
                    await self.client.start(container)
                except ActError as error:
                    why = f"{name} cannot be started: {refusal(error.why)}"
                    raise ActError(why, await self._tail(container)) from error
            inspect = await self.client.inspect(container)
            restarts = int((inspect or {}).get("RestartCount") or 0)
            while True:
                healthy = inspect is not None and not await _why_unhealthy(inspect)
                try:
                    inspect = await self.client.inspect(container)
                except ActError:  # Docker's daemon is away: the server may get ready all the same
                    await asyncio.sleep(_POLL_S)
                    continue
                await self._still_there(name, inspect, heard, restarts)
                if healthy and inspect is not None:
                    return inspect
                await asyncio.sleep(_POLL_S)

    async def _still_there(
        self, name: str, inspect: Json | None, heard: ObservedEvents, restarts: int
    ) -> None:
        if inspect is not None and int(inspect.get("RestartCount") or 0) > restarts:
            log = await last_lines(self.client, inspect)
            raise ActError(f"{name} {starts_again(inspect, heard, log, restarts)}", log)
        if inspect is None or not inspect["State"].get("Running"):
            await told(heard)
            inspect = await self.client.inspect(inspect["Id"]) if inspect else None
            log = await last_lines(self.client, inspect) if inspect else ()
            raise ActError(f"{name} {fate(inspect, heard, log)}", log)
        if not address_of(inspect):
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
        return "leave" if one.running else "stop"

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
                why = why_silent(one.inspect) or await _why_unhealthy(one.inspect)
                return f": {why}", await last_lines(self.client, one.inspect)
        return "", ()

    async def _mine(self, name: str) -> FoundContainer | None:
        return (await discovery.of_target(self.client, self.site, (name,))).get(name)

    async def _tail(self, container: str) -> tuple[str, ...]:
        with suppress(ActError):
            if (inspect := await self.client.inspect(container)) is not None:
                return await last_lines(self.client, inspect)
        return ()


async def _why_unhealthy(inspect: Json) -> str:
    address = address_of(inspect)
    return (await OpenAiProbe(address=address).health()).why if address else "it has no address"


def _in_hosts_network(inspect: Json) -> bool:
    return bool(inspect["HostConfig"].get("NetworkMode") == "host")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
