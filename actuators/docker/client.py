"""The calls to the Docker Engine. Each one has a timeout, and no change is sent twice.

Changes are idempotent: if the Engine refuses or does not answer, the client checks whether the state is as
requested.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import docker
from docker.utils import parse_repository_tag

from flettner.actuators.docker.container import Container, ContainerState, Endpoint
from flettner.actuators.host.server_log import format_lines
from flettner.agent.domain.errors import ActError
from flettner.clients.docker.api import EngineAt, Json, MissingError, SilentError, post
from flettner.clients.docker.events import follow_events
from flettner.clients.docker.parse import ContainerEvent
from flettner.primitives.waiting import poll_until

__all__ = ["DockerClient", "Json"]

_POLL_S = 0.2
_LONGEST = 1000  # characters of a log line
_OUTPUT_LINES = 5000  # of a container that ran once
_ONE_SHOT_SINCE = "1.41"  # of the API
_PULL_SILENCE_S = 600
_RECLAIMABLE = ("total_inactive_file", "inactive_file")
_IN_PROGRESS = "in progress"  # the Engine removes it already, for another client


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerClient:
    """`host`: "unix:///run/flettner/docker.sock"; empty: DOCKER_HOST, else Docker's own socket.

    Every call raises ActError if the Engine refuses, or does not answer. A cancelled change ends first, so
    that the clean-up finds its result.
    """

    host: str = ""
    timeout_s: float = 20.0
    _engine: EngineAt = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_engine", EngineAt(host=self.host, timeout_s=self.timeout_s))

    @property
    def address(self) -> str:
        """The address of the Engine; empty for Docker's own socket."""
        return self.host or os.environ.get("DOCKER_HOST", "")

    @property
    def is_local(self) -> bool:
        """Whether the Engine runs containers on the host of the daemon."""
        parts = urlsplit(self.address)
        return parts.scheme in {"", "unix"} or parts.hostname in {"localhost", "127.0.0.1", "::1"}

    # Queries.

    async def version(self) -> str:
        """Return the version of the Engine: "20.10.24"."""
        answer: Json = await self._engine.ask("its version", lambda api: api.version())
        return str(answer["Version"])

    async def inspect(self, container: str) -> Container | None:
        """Return the container of this name or id; None: there is none."""
        try:
            return await self._engine.ask(
                f"inspect {container}", lambda api: Container.parse(api.inspect_container(container))
            )
        except MissingError:
            return None

    async def list_containers(self, labels: Mapping[str, str]) -> list[Json]:
        """Return summaries of the containers, running or not, with all these labels. Value "": any value."""
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        return await self._engine.ask(
            "list containers", lambda api: api.containers(all=True, filters={"label": wanted})
        )

    async def image(self, ref: str) -> Json | None:
        """Inspect the image of this tag, digest or id; None: it is not on this host. Pulls nothing."""
        try:
            return await self._engine.ask(
                f"inspect image {ref}",
                lambda api: api.inspect_image(ref),  # type: ignore[no-untyped-call]
            )
        except MissingError:
            return None

    async def memory(self, container: str) -> int | None:
        """Return the bytes that it cannot give back: its usage without inactive file pages.

        None while it does not run. Raises MissingError when it is gone.
        """
        stats: Json = await self._engine.ask(
            f"the memory of {container}", partial(_stats, container=container)
        )
        return _held_bytes(stats.get("memory_stats") or {})

    async def log(self, container: str, lines: int = 40) -> str:
        """Return the last lines of its log, both streams, oldest first. Raises MissingError."""
        return await self._engine.ask(
            f"the log of {container}", partial(_log, container=container, lines=lines)
        )

    async def tail(self, container: str, lines: int = 40) -> tuple[str, ...]:
        """Return the lines of its `log`; () if the container or the Engine is gone."""
        with suppress(ActError):
            text = await self.log(container, lines)
            return tuple(line[:_LONGEST] for line in text.splitlines())
        return ()

    async def read_log(self, container: Container) -> tuple[str, ...]:
        """Return the end of its log without its secrets; () if it is gone."""
        with suppress(MissingError):
            return format_lines(await self.log(container.id), container.serve.secrets)
        return ()

    async def read_log_if_possible(self, container: Container | None) -> tuple[str, ...]:
        """Return the lines of `read_log`; () on an error."""
        with suppress(ActError):
            return await self.read_log(container) if container else ()
        return ()

    def events(
        self, filters: Mapping[str, Sequence[str]], since: str | None = None
    ) -> AsyncGenerator[ContainerEvent, None]:
        """Yield events of the Engine, over its restarts; RESYNC first, and whenever events may be missing."""
        return follow_events(self._engine.connected, filters, since)

    # Changes.

    async def pull(self, ref: str, report: Callable[[str], None] = lambda _: None) -> None:
        """Pull the image of this tag or digest, with the user's own credentials. Raises ActError.

        A cancelled pull ends at its next line of progress. `report` is called from another thread
        with a sentence that says how much is here.
        """
        ended = Event()
        pulling = asyncio.ensure_future(
            self._engine.ask(
                f"pull {ref}", partial(_pull, ref=ref, ended=ended, report=report), _PULL_SILENCE_S
            )
        )
        try:
            await asyncio.shield(pulling)
        except asyncio.CancelledError:
            ended.set()
            await asyncio.wait({pulling})
            raise

    async def create(self, body: Json, name: str) -> str:
        """Create a container of raw Engine JSON; return its id. Pulls and starts nothing."""

        async def made() -> str:
            existing = await self.inspect(name)
            return existing.id if existing else ""

        return str(
            await self._ensure(
                f"create {name}",
                lambda api: api.create_container_from_config(body, name)["Id"],  # type: ignore[no-untyped-call]
                made,
                only_if_unanswered=True,  # an older container of that name is not this one
            )
        )

    async def start(self, container: str) -> None:
        """Start the container unless it runs. Raises ActError with the message of the runtime; it remains."""
        before = await self._state(container)

        async def started() -> bool:
            now = await self._state(container)
            return now.running or now.started_at != before.started_at

        await self._ensure(f"start {container}", lambda api: api.start(container), started)

    async def kill(self, container: str, signal: str = "SIGKILL") -> None:
        """Send the signal, unless the container has ended or is gone."""
        await self._ensure(
            f"send {signal} to {container}",
            lambda api: api.kill(container, signal),
            partial(self._ended, container),
        )

    async def stop(self, container: str, grace_s: float) -> None:
        """Send its stop signal, SIGKILL after `grace_s`; return when it has ended, or is gone."""
        await self._ensure(
            f"stop {container}",
            lambda api: api.stop(container, timeout=round(grace_s)),
            partial(self._ended, container),
            longer_s=grace_s,
        )

    async def remove(self, container: str, *, volumes: bool = False) -> None:
        """Remove it, running or not. `volumes`: with its anonymous volumes. No error if it is gone."""

        async def gone() -> bool:
            return await self.inspect(container) is None

        await self._ensure(
            f"remove {container}", lambda api: api.remove_container(container, v=volumes, force=True), gone
        )

    async def restart_policy(self, container: str, policy: Json) -> None:
        """`policy` as in HostConfig.RestartPolicy: {"Name": "no"}."""

        async def is_set() -> bool:
            current = await self.inspect(container)
            return current is not None and policy.items() <= current.restart_policy.items()

        await self._ensure(
            f"set the restart policy of {container}",
            partial(post, path=f"/containers/{container}/update", body={"RestartPolicy": policy}),
            is_set,
        )

    async def connect(self, network: str, container: str, endpoint: Json) -> None:
        """`endpoint` as in NetworkSettings.Networks: {"Aliases": […]}. No error if it is connected."""

        async def connected() -> bool:
            joined = await self._endpoint(network, container)
            return joined is not None and set(endpoint.get("Aliases") or ()) <= set(joined.aliases)

        body = {"Container": container, "EndpointConfig": endpoint}
        path = f"/networks/{network}/connect"
        await self._ensure(
            f"connect {container} to {network}", partial(post, path=path, body=body), connected
        )

    async def wait(self, container: str) -> Container | None:
        """Return the container once it has ended; None: it was removed."""
        ended: Container | None = None

        async def has_ended() -> bool:
            nonlocal ended
            ended = await self.inspect(container)
            return ended is None or not ended.state.running

        await poll_until(has_ended, _POLL_S)
        return ended

    async def run_once(self, body: Json, name: str, deadline_s: float) -> tuple[int, str]:
        """Run a container to its end; return exit code and output, both streams. It is always removed.

        Raises ActError with the output's last lines when it does not end within `deadline_s`.
        """
        try:
            made = await self.create(body, name)
            await self.start(made)
            try:
                async with asyncio.timeout(deadline_s):
                    ended = await self.wait(made)
            except TimeoutError as error:
                why = f"docker: run {name}: it did not end within {deadline_s:g} s"
                raise ActError(why, await self.tail(made)) from error
            if ended is None:
                raise ActError(f"docker: run {name}: it was removed, and its exit code with it")
            return ended.state.exit_code, await self.log(made, _OUTPUT_LINES)
        finally:
            await self.remove(name, volumes=True)

    # Details.

    async def _ensure(
        self,
        asked: str,
        call: Callable[[docker.APIClient], Any],
        is_done: Callable[[], Awaitable[Any]],
        *,
        longer_s: float = 0.0,
        only_if_unanswered: bool = False,
    ) -> Any:  # noqa: ANN401
        """Return the result of `call`, or of `is_done` if the call failed and the change is made.

        An Engine that did not answer may need a while to make it: `is_done` is polled until the timeout.
        """
        try:
            return await self._engine.ask(asked, call, longer_s)
        except ActError as error:
            silent = isinstance(error, SilentError)
            if only_if_unanswered and not silent:
                raise
            patience_s = self.timeout_s if silent or _IN_PROGRESS in error.why else 0.0
            if result := await self._poll(is_done, patience_s + (longer_s if silent else 0.0)):
                return result
            raise

    async def _poll(self, is_done: Callable[[], Awaitable[Any]], patience_s: float) -> Any:  # noqa: ANN401
        """Poll `is_done` until it returns a true value, or until the time is over."""

        async def ask() -> Any:  # noqa: ANN401
            with suppress(ActError):
                return await is_done()
            return None

        return await poll_until(ask, _POLL_S, patience_s)

    async def _state(self, container: str) -> ContainerState:
        inspected = await self.inspect(container)
        return inspected.state if inspected else ContainerState()

    async def _ended(self, container: str) -> bool:
        return not (await self._state(container)).running

    async def _endpoint(self, network: str, container: str) -> Endpoint | None:
        """Return the connection to the network of this name or id; None: there is none."""
        inspected = await self.inspect(container)
        for name, endpoint in inspected.networks.items() if inspected else ():
            if network in {name, endpoint.network_id}:
                return endpoint
        return None


def _pull(api: docker.APIClient, ref: str, ended: Event, report: Callable[[str], None]) -> None:
    name, _, digest = ref.partition("@")
    repository, tag = parse_repository_tag(name)
    api.timeout = _PULL_SILENCE_S  # between two lines of progress: a large layer is unpacked in silence
    layers: dict[str, tuple[int, int]] = {}
    for line in api.pull(repository, tag=digest or tag or "latest", stream=True, decode=True):
        if ended.is_set():
            return
        if "error" in line:
            raise ActError(f"docker: pull {ref}: {line['error']}")
        _note_layer(layers, line)
        if layers:
            report(_describe_pull(ref, layers.values()))


def _note_layer(layers: dict[str, tuple[int, int]], line: Json) -> None:
    """Note the loaded bytes of a layer, and all of them. Unpacking starts at zero again: it is left out."""
    layer, detail = str(line.get("id", "")), line.get("progressDetail") or {}
    if line.get("status") == "Downloading" and detail.get("total"):
        layers[layer] = (int(detail["current"]), int(detail["total"]))
    elif line.get("status") in {"Download complete", "Pull complete"} and layer in layers:
        layers[layer] = (layers[layer][1], layers[layer][1])


def _describe_pull(ref: str, layers: Iterable[tuple[int, int]]) -> str:
    """The total is of the layers whose load has begun."""
    loaded, total = (sum(part) / 1e9 for part in zip(*layers, strict=True))
    if loaded >= total:
        return f"unpacks {ref}, {total:.1f} GB"
    return f"pulls {ref}: {loaded:.1f} of {total:.1f} GB"


def _stats(api: docker.APIClient, container: str) -> Json:
    """Take one sample; Engines before 20.10 need a second or two."""
    once = None if docker.utils.version_lt(str(api.api_version), _ONE_SHOT_SINCE) else True
    stats: Json = api.stats(container, stream=False, one_shot=once)
    return stats


def _held_bytes(memory: Json) -> int | None:
    """`memory`: memory_stats of the Engine; the names differ between cgroup version 1 and 2."""
    usage, statistics = memory.get("usage"), memory.get("stats") or {}
    if not isinstance(usage, int):
        return None
    idle = next((statistics[name] for name in _RECLAIMABLE if isinstance(statistics.get(name), int)), 0)
    return max(0, usage - int(idle))


def _log(api: docker.APIClient, container: str, lines: int) -> str:
    return api.logs(container, stdout=True, stderr=True, tail=lines).decode("utf-8", "replace")
