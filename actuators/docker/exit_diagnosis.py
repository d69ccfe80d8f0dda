"""Name the cause when a container ends, does not start or falls silent: from its state, events and log."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from actuators.docker.client import DockerClient
from actuators.docker.discovery import COMPOSE
from actuators.docker.spec import ContainerSpec
from actuators.host.process_group import how_it_ended
from actuators.host.server_log import cause_in, shown
from agent.domain.errors import ActError
from docker_engine.api import MissingError
from docker_engine.parse import ContainerEvent

_MIB = 2**20
_LISTENING_WITHIN_S = 2.0
_LAST_EVENTS_S = 1.0
_ENGINE_DIED = re.compile(
    r"EngineDeadError|Engine ?Core.*(died|encountered an issue|fatal)|(?i:engine .*died)"
)
_REFUSALS = (  # what the Engine says, and what to do
    (r"(?i)no such image", "its image is gone: pull or build it again"),
    (r"(?i)no space left", "the disk is full: make room where Docker keeps its data"),
    (r"(?i)port is already allocated|address already in use", "something else listens on that port"),
    (r"(?i)executable file not found|no such file or directory", "the image has no such program or file"),
    (r"(?i)could not select device driver", "install the NVIDIA Container Toolkit"),
    (r"(?i)network .* not found", "the network is gone: create it again"),
)

_CODE = re.compile(r"-?[0-9]{1,9}")


@dataclass(slots=True)
class ObservedEvents:
    """What Docker's events have said of one container."""

    oom: bool = False
    exit_code: int | None = None
    signals: list[int] = field(default_factory=list)
    stopped: bool = False  # docker stop, or the end of Docker's daemon
    before: tuple[bool, int | None] = (False, None)  # oom and exit code of its life before this one
    news: asyncio.Event = field(default_factory=asyncio.Event)  # worth a look
    over: asyncio.Event = field(default_factory=asyncio.Event)  # nothing more is to be told of its end

    def take(self, event: ContainerEvent) -> bool:
        """Whether something may have changed."""
        match event.action:
            case "oom":
                self.oom = True
            case "kill":
                self.signals.append(_number(event.attributes.get("signal", "")))
            case "die":
                self.exit_code = _number(event.attributes.get("exitCode", ""))
                if not self.signals:
                    self.over.set()
            case "stop":
                self.stopped = True
                self.over.set()
            case "destroy":
                self.over.set()
            case "start":  # what was heard of its last life says nothing of this one
                self.before = (self.oom, self.exit_code)
                self.oom, self.exit_code, self.stopped = False, None, False
                self.signals.clear()
                self.over.clear()
            case _:
                pass
        return not event.action.startswith(("exec_", "health_status", "top", "resize"))


@asynccontextmanager
async def hearing(client: DockerClient, container: str) -> AsyncIterator[ObservedEvents]:
    """What is told of the container from here on; not waited for long where Docker's daemon is away."""
    heard, listening = ObservedEvents(), asyncio.Event()

    async def listen() -> None:
        async for event in client.events({"type": ["container"], "container": [container]}):
            listening.set()
            if heard.take(event):
                heard.news.set()

    task = asyncio.create_task(listen())
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTENING_WITHIN_S):
                await listening.wait()
        yield heard
    finally:
        task.cancel()
        await asyncio.wait([task])


async def told(heard: ObservedEvents) -> None:
    """Give what is told of an end the time to come: a kill may be the first half of a stop, or a removal."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_EVENTS_S):
            await heard.over.wait()


def fate(spec: ContainerSpec | None, heard: ObservedEvents, log: Sequence[str] = ()) -> str:
    """How a container that does not run ended, the cause last: "exited with code 1: ValueError: …"."""
    cause = cause_in(log)
    how = _fate(spec, heard)
    if "with code 0" in how and any(_ENGINE_DIED.search(line) for line in log):
        how = f"{how}, after its engine died"
    return f"{how}: {cause}" if cause else how


def _fate(spec: ContainerSpec | None, heard: ObservedEvents) -> str:
    if spec is None:
        by_itself = heard.exit_code is not None and not heard.signals and not heard.oom
        if by_itself:
            return f"{how_it_ended(heard.exit_code)}, and its container was removed"
        return "was removed by hand (docker rm)"
    state = spec.state
    code = heard.exit_code if heard.exit_code is not None else state.exit_code
    if state.status == "created":
        return f"could not be started: {state.error or 'nobody has started it'}"
    if state.oom_killed or heard.oom:
        of = f" of {spec.memory_limit // _MIB} MiB" if spec.memory_limit else ""
        return f"was killed by the kernel, out of memory: it needed more than its limit{of}"
    if heard.stopped or signal.SIGTERM in heard.signals:
        project = spec.labels.get(COMPOSE)
        by = f", or docker compose (project {project})" if project else ""
        return f"was stopped by somebody else (docker stop{by}), {how_it_ended(code)}"
    if heard.signals:
        number = heard.signals[-1]
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was killed by somebody else (docker kill, {name})"
    meaning = {126: ": its program may not be executed", 127: ": the image has no such program"}
    return how_it_ended(code) + meaning.get(code, "")


def starts_again(spec: ContainerSpec, heard: ObservedEvents, log: Sequence[str], before: int) -> str:
    """Of one that its own restart policy has started again. `before`: its RestartCount at first."""
    times = spec.restart_count - before
    oom, code = (heard.oom, heard.exit_code) if heard.exit_code is not None else heard.before
    how = "out of memory" if oom or spec.state.oom_killed else ""
    if not how and code is not None:
        how = how_it_ended(code)
    said = "; ".join(filter(None, (how, cause_in(log))))
    often = f" {times} times" if times > 1 else ""
    return f"was restarted by Docker{often}" + (f": {said}" if said else "")


def why_silent(spec: ContainerSpec | None) -> str:
    """What its state adds to its silence; empty when nothing."""
    if spec is None:
        return ""
    if spec.state.paused:
        return "its container is paused (docker unpause)"
    if spec.network_mode not in {"host", "none"} and not any(one.address for one in spec.networks.values()):
        return "its container is disconnected from its network (docker network connect)"
    return "its own health check says unhealthy" if spec.state.health == "unhealthy" else ""


def refusal(said: str) -> str:
    """The Engine's words, and what to do about them where that is known."""
    fixes = [fix for pattern, fix in _REFUSALS if re.search(pattern, said)]
    return f"{said} ({fixes[0]})" if fixes else said


async def log_of(client: DockerClient, spec: ContainerSpec) -> tuple[str, ...]:
    """The end of its log, fit to be shown; () when it is gone. Raises ActError when it cannot be read."""
    with suppress(MissingError):
        return shown(await client.log(spec.id), spec.secrets)
    return ()


async def last_lines(client: DockerClient, spec: ContainerSpec) -> tuple[str, ...]:
    """As `log_of`; () when it cannot be read."""
    with suppress(ActError):
        return await log_of(client, spec)
    return ()


def _number(text: str) -> int:
    return int(text) if _CODE.fullmatch(text) else 0
