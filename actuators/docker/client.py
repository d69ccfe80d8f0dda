"""What is asked of the Docker Engine: every call ends, and what is not known after it is looked up.

Changes are "make it so": when the Engine refuses or keeps silent, the client looks whether it is so. What was
asked once is not asked again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import docker

from actuators.docker.spec import ContainerSpec, ContainerState, Endpoint
from agent.domain.errors import ActError
from docker_engine.api import EngineAt, Json, MissingError, SilentError, post
from docker_engine.events import follow_events
from docker_engine.parse import ContainerEvent

__all__ = ["DockerClient", "Json"]

_POLL_S = 0.2
_LONGEST = 1000  # characters of one log line that anybody reads
_OUTPUT_LINES = 5000  # of a container that ran once
_ONE_SHOT_SINCE = "1.41"  # of the API
_RECLAIMABLE = ("total_inactive_file", "inactive_file")
_BEING_DONE = "in progress"  # what the Engine says of a removal that somebody else asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerClient:
    """`host`: "unix:///run/trimtab/docker.sock"; empty: DOCKER_HOST, else Docker's own socket.

    Every call raises ActError when the Engine refuses, or does not answer. A change that is cancelled is
    waited for first, so that who cleans up finds what it made.
    """

    host: str = ""
    timeout_s: float = 20.0
    _engine: EngineAt = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_engine", EngineAt(host=self.host, timeout_s=self.timeout_s))

    # Asking.

    async def version(self) -> str:
        """The Engine's own: "20.10.24"."""
        answer: Json = await self._engine.ask("its version", lambda api: api.version())
        return str(answer["Version"])

    async def inspect(self, container: str) -> ContainerSpec | None:
        """By name or id; None: there is none."""
        try:
            return await self._engine.ask(
                f"inspect {container}", lambda api: ContainerSpec.parse(api.inspect_container(container))
            )
        except MissingError:
            return None

    async def listed(self, labels: Mapping[str, str]) -> list[Json]:
        """Summaries of the containers, running or not, that bear all these labels. Value "": any value."""
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        return await self._engine.ask(
            "list containers", lambda api: api.containers(all=True, filters={"label": wanted})
        )

    async def image(self, ref: str) -> Json | None:
        """By tag, digest or id; None: it is not here. Nothing is pulled."""
        try:
            return await self._engine.ask(
                f"inspect image {ref}",
                lambda api: api.inspect_image(ref),  # type: ignore[no-untyped-call]
            )
        except MissingError:
            return None

    async def memory(self, container: str) -> int | None:
        """Bytes that it holds and would not give back: its usage without the file pages last used long ago.

        None while it does not run. Raises MissingError when it is gone.
        """
        stats: Json = await self._engine.ask(
            f"the memory of {container}", partial(_stats, container=container)
        )
        return _held(stats.get("memory_stats") or {})

    async def log(self, container: str, lines: int = 40) -> str:
        """The last lines of its log, both streams, oldest first. Raises MissingError when it is gone."""
        return await self._engine.ask(
            f"the log of {container}", partial(_log, container=container, lines=lines)
        )

    async def tail(self, container: str, lines: int = 40) -> tuple[str, ...]:
        """The lines of its `log`; () when it, or the Engine, is gone."""
        with suppress(ActError):
            text = await self.log(container, lines)
            return tuple(line[:_LONGEST] for line in text.splitlines())
        return ()

    def events(
        self, filters: Mapping[str, Sequence[str]], since: str | None = None
    ) -> AsyncGenerator[ContainerEvent, None]:
        """Events of the Engine, over its restarts. RESYNC first, and whenever events may be missing."""
        return follow_events(self._engine.connected, filters, since)

    # Changing.

    async def create(self, body: Json, name: str) -> str:
        """A container of raw Engine JSON; its id. Nothing is pulled; it is not started."""

        async def made() -> str:
            found = await self.inspect(name)
            return found.id if found else ""

        return str(
            await self._make(
                f"create {name}",
                lambda api: api.create_container_from_config(body, name)["Id"],  # type: ignore[no-untyped-call]
                made,
                only_silence=True,  # a container of that name that was there before is not this one
            )
        )

    async def start(self, container: str) -> None:
        """Fine if it runs. Raises ActError with the runtime's own words; it is then left as created."""
        before = await self._state(container)

        async def started() -> bool:
            now = await self._state(container)
            return now.running or now.started_at != before.started_at

        await self._make(f"start {container}", lambda api: api.start(container), started)

    async def kill(self, container: str, signal: str = "SIGKILL") -> None:
        """Fine if it does not run, or is gone."""
        await self._make(
            f"send {signal} to {container}",
            lambda api: api.kill(container, signal),
            partial(self._ended, container),
        )

    async def stop(self, container: str, grace_s: float) -> None:
        """Its stop signal, SIGKILL after `grace_s`; returns when it has ended. Fine if it is gone."""
        await self._make(
            f"stop {container}",
            lambda api: api.stop(container, timeout=round(grace_s)),
            partial(self._ended, container),
            longer_s=grace_s,
        )

    async def remove(self, container: str, *, volumes: bool = False) -> None:
        """Running or not. `volumes`: its anonymous ones too, whatever they hold. Fine if it is gone."""

        async def gone() -> bool:
            return await self.inspect(container) is None

        await self._make(
            f"remove {container}", lambda api: api.remove_container(container, v=volumes, force=True), gone
        )

    async def rename(self, container: str, name: str) -> None:
        known = await self.inspect(container)

        async def renamed() -> bool:
            found = await self.inspect(name)
            return found is not None and known is not None and found.id == known.id

        await self._make(f"rename {container} to {name}", lambda api: api.rename(container, name), renamed)

    async def restart_policy(self, container: str, policy: Json) -> None:
        """`policy` as in HostConfig.RestartPolicy: {"Name": "no"}."""

        async def set_so() -> bool:
            found = await self.inspect(container)
            return found is not None and policy.items() <= found.restart_policy.items()

        await self._make(
            f"set the restart policy of {container}",
            partial(post, path=f"/containers/{container}/update", body={"RestartPolicy": policy}),
            set_so,
        )

    async def connect(self, network: str, container: str, endpoint: Json) -> None:
        """`endpoint` as in NetworkSettings.Networks: {"Aliases": […]}. Fine if it is connected so."""

        async def connected() -> bool:
            found = await self._endpoint(network, container)
            return found is not None and set(endpoint.get("Aliases") or ()) <= set(found.aliases)

        body = {"Container": container, "EndpointConfig": endpoint}
        path = f"/networks/{network}/connect"
        await self._make(f"connect {container} to {network}", partial(post, path=path, body=body), connected)

    async def disconnect(self, network: str, container: str) -> None:
        """Fine if it is not connected, or one of them is gone."""

        async def apart() -> bool:
            return await self._endpoint(network, container) is None

        await self._make(
            f"disconnect {container} from {network}",
            lambda api: api.disconnect_container_from_network(container, network, force=True),
            apart,
        )

    async def wait(self, container: str) -> int:
        """The exit code, once it does not run. Raises ActError when it is gone."""
        while True:
            found = await self.inspect(container)
            if found is None:
                raise ActError(f"docker: wait for {container}: it is gone, and its exit code with it")
            if not found.state.running:
                return found.state.exit_code
            await asyncio.sleep(_POLL_S)

    async def run_once(self, body: Json, name: str, deadline_s: float) -> tuple[int, str]:
        """Run a container to its end: exit code and output, both streams. It is removed, whatever happens.

        Raises ActError with the output's last lines when it does not end within `deadline_s`.
        """
        try:
            made = await self.create(body, name)
            await self.start(made)
            try:
                async with asyncio.timeout(deadline_s):
                    code = await self.wait(made)
            except TimeoutError as error:
                why = f"docker: run {name}: it did not end within {deadline_s:g} s"
                raise ActError(why, await self.tail(made)) from error
            output = await self._engine.ask(
                f"the output of {name}", partial(_log, container=made, lines=_OUTPUT_LINES)
            )
            return code, output
        finally:
            await self.remove(name, volumes=True)

    # How.

    async def _make(
        self,
        asked: str,
        call: Callable[[docker.APIClient], Any],
        so: Callable[[], Awaitable[Any]],
        *,
        longer_s: float = 0.0,
        only_silence: bool = False,
    ) -> Any:  # noqa: ANN401
        """What `call` answers, or `so` when it failed and yet is so. After silence that may take a while."""
        try:
            return await self._engine.ask(asked, call, longer_s)
        except ActError as error:
            silent = isinstance(error, SilentError)
            if only_silence and not silent:
                raise
            patience_s = self.timeout_s if silent or _BEING_DONE in error.why else 0.0
            if found := await self._looked(so, patience_s + (longer_s if silent else 0.0)):
                return found
            raise

    async def _looked(self, so: Callable[[], Awaitable[Any]], patience_s: float) -> Any:  # noqa: ANN401
        """What `so` finds, as soon as it finds something; a last look at the end."""
        until = time.monotonic() + patience_s
        while True:
            found = None
            with suppress(ActError):
                found = await so()
            if found or time.monotonic() >= until:
                return found
            await asyncio.sleep(_POLL_S)

    async def _state(self, container: str) -> ContainerState:
        found = await self.inspect(container)
        return found.state if found else ContainerState()

    async def _ended(self, container: str) -> bool:
        return not (await self._state(container)).running

    async def _endpoint(self, network: str, container: str) -> Endpoint | None:
        """How the container is connected to the network, given by name or id."""
        found = await self.inspect(container)
        for name, endpoint in found.networks.items() if found else ():
            if network in {name, endpoint.network_id}:
                return endpoint
        return None


def _stats(api: docker.APIClient, container: str) -> Json:
    """Once; an Engine before 20.10 looks for a second or two."""
    once = None if docker.utils.version_lt(str(api.api_version), _ONE_SHOT_SINCE) else True
    found: Json = api.stats(container, stream=False, one_shot=once)
    return found


def _held(memory: Json) -> int | None:
    """`memory`: the Engine's memory_stats; cgroup version 1 and 2 have other names for the same."""
    usage, statistics = memory.get("usage"), memory.get("stats") or {}
    if not isinstance(usage, int):
        return None
    idle = next((statistics[name] for name in _RECLAIMABLE if isinstance(statistics.get(name), int)), 0)
    return max(0, usage - int(idle))


def _log(api: docker.APIClient, container: str, lines: int) -> str:
    return api.logs(container, stdout=True, stderr=True, tail=lines).decode("utf-8", "replace")
