"""A bench of real containers: starts, inspects and removes them.

Ports are chosen here, outside the range that the kernel gives to outgoing connections and to port 0: there
another process could take the port of a restarting container.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, TypeVar

import docker
from docker.errors import APIError, NotFound
from docker.utils import kwargs_from_env

from flettner.actuators.docker.client import DockerClient, Json
from flettner.actuators.docker.container import Container
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from tests.support.docker_images import Image, real_vllm_image, simulator_image
from tests.support.ports import free_port

PORT = "8000/tcp"  # where the servers listen inside
BENCH = "flettner.bench"  # the label of all that a bench made

_T = TypeVar("_T")
_TRIES = 10
_BUSY = ("already allocated", "already in use")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningContainer:
    """`address`: "127.0.0.1:20123" as published; empty when it is not."""

    id: str
    name: str
    address: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.address}"


class Bench:
    """`async with Bench() as bench`. Names begin with `prefix`, which no other bench has."""

    def __init__(self, host: str = "") -> None:
        self.client = DockerClient(host=host)
        self.prefix = f"bench-{secrets.token_hex(4)}-"

    async def __aenter__(self) -> Self:
        """Raises ActError when no Engine answers: `scripts/engine up` starts one."""
        await self.client.version()
        return self

    @cached_property
    def _engine(self) -> docker.APIClient:
        where: Json = {"base_url": self.client.host} if self.client.host else dict(kwargs_from_env())
        return docker.APIClient(**where, version="auto", timeout=60)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.tear_down()

    async def engine(self, call: Callable[[docker.APIClient], _T]) -> _T:
        """Call docker-py directly: `await bench.engine(lambda api: api.pause(one.id))`."""
        return await asyncio.to_thread(call, self._engine)

    async def simulator(self) -> Image:
        return await self.engine(simulator_image)

    async def real(self, release: str = "") -> Image:
        return await self.engine(partial(real_vllm_image, release=release))

    async def run(
        self,
        *flags: str,
        name: str = "vllm",
        image: Image | None = None,
        port: int | None = 0,
        memory: int = 0,
        cpuset_cpus: str = "",
        restart: str = "no",
        env: Mapping[str, str] | None = None,
        tmpfs: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        networks: Sequence[str] = (),
        binds: Sequence[str] = (),
        config: Json | None = None,
        host: Json | None = None,
    ) -> RunningContainer:
        """`docker run` of a server whose command ends with `flags`; it runs, and may not serve yet.

        `port`: published on 127.0.0.1; 0: one that is free, None: not at all. `memory`: bytes. `networks`:
        names that `network` gave; the container is `name` on them. `config` and `host` (HostConfig) are
        raw Engine JSON that goes over all else.
        """
        image = image or await self.simulator()
        full = self.prefix + name
        first, *others = networks or ("bridge",)
        endpoint = {"Aliases": [name]} if networks else {}
        options: Json = {
            "NetworkMode": first,
            "Binds": [*image.binds, *binds],
            "Tmpfs": dict(tmpfs or {}),
            "Memory": memory,
            "MemorySwap": memory,
            "CpusetCpus": cpuset_cpus,
            "RestartPolicy": _restart_policy(restart),
            "Init": True,
            **image.host,
        }
        body: Json = {
            "Image": image.tag,
            "Cmd": [*image.flags, *flags],
            "Env": [f"{key}={value}" for key, value in (env or {}).items()],
            "Labels": {**(labels or {}), BENCH: self.prefix},
            "ExposedPorts": {PORT: {}},
            "NetworkingConfig": {"EndpointsConfig": {first: endpoint}},
        }
        for again in range(_TRIES):
            chosen = free_port() if port == 0 else port
            published = {PORT: [{"HostIp": "127.0.0.1", "HostPort": str(chosen)}]} if chosen else {}
            host_config = {**options, "PortBindings": published, **(host or {})}
            try:
                made = await self._start({**body, "HostConfig": host_config, **(config or {})}, full, others)
            except ActError as error:
                if port != 0 or again == _TRIES - 1 or not any(why in error.why for why in _BUSY):
                    raise
                continue
            return RunningContainer(id=made, name=full, address=f"127.0.0.1:{chosen}" if chosen else "")
        raise AssertionError

    async def _start(self, body: Json, name: str, networks: Sequence[str]) -> str:
        """Create and start a container on further networks; it is removed if it cannot start."""
        endpoint: Json = next(iter(body["NetworkingConfig"].get("EndpointsConfig", {}).values()), {})
        made = await self.client.create(body, name)
        for network in networks:
            await self.client.connect(network, made, endpoint)
        try:
            await self.client.start(made)
        except ActError:
            await self.client.remove(made, volumes=True)
            raise
        return made

    async def rename(self, container: str, name: str) -> None:
        await self.engine(lambda api: api.rename(container, self.prefix + name))

    async def disconnect(self, network: str, container: str) -> None:
        await self.engine(lambda api: api.disconnect_container_from_network(container, network, force=True))

    async def network(self, name: str) -> str:
        """A bridge of its own; its full name."""
        full = self.prefix + name
        await self.engine(lambda api: api.create_network(full, driver="bridge", labels={BENCH: self.prefix}))
        return full

    async def volume(self, name: str) -> str:
        full = self.prefix + name
        await self.engine(lambda api: api.create_volume(full, labels={BENCH: self.prefix}))
        return full

    async def healthy(self, container: RunningContainer, deadline_s: float = 60.0) -> None:
        """Waits until /health answers 200. Raises ActError with the log when it ends, or does not in time."""
        probe = OpenAiProbe(address=container.address)
        try:
            async with asyncio.timeout(deadline_s):
                while (await probe.health()).why:
                    inspected = await self.client.inspect(container.id)
                    if inspected is None or inspected.state.status in {"exited", "dead"}:
                        raise ActError(f"{container.name} ended", await self.said(container))
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            why = f"{container.name} is not healthy after {deadline_s:g} s"
            raise ActError(why, await self.said(container)) from error

    async def serving(self, *flags: str, **options: Any) -> RunningContainer:  # noqa: ANN401
        """`run`, and `healthy`."""
        container = await self.run(*flags, **options)
        await self.healthy(container)
        return container

    async def inspect(self, container: RunningContainer) -> Json:
        return (await self.spec(container)).document

    async def spec(self, container: RunningContainer) -> Container:
        inspected = await self.client.inspect(container.id)
        assert inspected is not None, f"{container.name} is gone"
        return inspected

    async def said(self, container: RunningContainer) -> tuple[str, ...]:
        return await self.client.tail(container.id, 200)

    async def made_after(self, container: RunningContainer, name: str) -> list[str]:
        """The names of containers that were made after this one, if they begin with `name`."""
        since = datetime.fromisoformat((await self.inspect(container))["Created"])
        created = {"type": "container", "event": "create"}

        def events(api: docker.APIClient) -> list[Json]:
            now = datetime.fromisoformat(api.info()["SystemTime"])
            return list(api.events(since=since, until=now, filters=created, decode=True))

        events_seen = await self.engine(events)
        names = [str(event["Actor"]["Attributes"]["name"]) for event in events_seen]
        return [created_name for created_name in names if created_name.startswith(name)]

    async def names(self, labels: Mapping[str, str] | None = None) -> set[str]:
        """Of the containers with these labels, running or not; without any: all of this bench."""
        summaries = await self.client.list_containers(labels or {BENCH: self.prefix})
        return {name.removeprefix("/") for summary in summaries for name in summary["Names"]}

    async def tear_down(self) -> None:
        """Removes what this bench has made, and what was cloned from that: a clone inherits the label."""
        for summary in await self.client.list_containers({BENCH: self.prefix}):
            await self.client.remove(summary["Id"], volumes=True)
        await asyncio.to_thread(self._without_networks_and_volumes)

    def _without_networks_and_volumes(self) -> None:
        mine = {"label": f"{BENCH}={self.prefix}"}
        for network in self._engine.networks(filters=mine):
            for endpoint in self._engine.inspect_network(network["Id"])["Containers"] or {}:
                with suppress(NotFound, APIError):
                    self._engine.disconnect_container_from_network(endpoint, network["Id"], force=True)
            self._engine.remove_network(network["Id"])
        for volume in self._engine.volumes(filters=mine)["Volumes"] or []:
            self._engine.remove_volume(volume["Name"], force=True)
        self._engine.close()


def _restart_policy(words: str) -> Json:
    """As `docker run --restart` has it: "no", "always", "on-failure:3"."""
    name, _, count = words.partition(":")
    return {"Name": name, "MaximumRetryCount": int(count or 0)}
