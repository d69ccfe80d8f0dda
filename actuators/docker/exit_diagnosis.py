"""Name the cause when a container ends, does not start or does not answer: from its state, events and log."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.host.process_group import how_it_ended
from flettner.actuators.host.server_log import cause_in
from flettner.clients.docker.parse import ContainerEvent

_MIB = 2**20
_OPEN_WITHIN_S = 2.0
_LAST_EVENTS_S = 1.0
_ENGINE_DIED = re.compile(
    r"EngineDeadError|Engine ?Core.{0,300}(died|encountered an issue|fatal)|(?i:engine .{0,300}died)"
)
_REFUSALS = (  # messages of the Engine, and what to do
    (r"(?i)no such image", "its image is gone: pull or build it again"),
    (r"(?i)no space left", "the disk is full: free space where Docker keeps its data"),
    (r"(?i)port is already allocated|address already in use", "another process listens on that port"),
    (r"(?i)executable file not found|no such file or directory", "the image has no such program or file"),
    (r"(?i)could not select device driver", "install the NVIDIA Container Toolkit"),
    (r"(?i)network .* not found", "the network is gone: create it again"),
)

_CODE = re.compile(r"-?[0-9]{1,9}")


@dataclass(slots=True)
class ObservedEvents:
    """The events of one container since the stream was opened."""

    oom: bool = False
    exit_code: int | None = None
    signals: list[int] = field(default_factory=list)
    stopped: bool = False  # docker stop, or the end of Docker's daemon
    before: tuple[bool, int | None] = (False, None)  # oom and exit code of its previous run
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set if its state may have changed
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # set by the last event of its end

    def record(self, event: ContainerEvent) -> bool:
        """Return whether the event may have changed its state."""
        match event.action:
            case "oom":
                self.oom = True
            case "kill":
                self.signals.append(_number(event.attributes.get("signal", "")))
            case "die":
                self.exit_code = _number(event.attributes.get("exitCode", ""))
                if not self.signals:
                    self.ended.set()
            case "stop":
                self.stopped = True
                self.ended.set()
            case "destroy":
                self.ended.set()
            case "start":
                self.before = (self.oom, self.exit_code)
                self.oom, self.exit_code, self.stopped = False, None, False
                self.signals.clear()
                self.ended.clear()
            case _:
                pass
        return not event.action.startswith(("exec_", "health_status", "top", "resize"))


@asynccontextmanager
async def observe_events(client: DockerClient, container_id: str) -> AsyncIterator[ObservedEvents]:
    """Record the events of a container from here on. Waits 2 s at most for a Docker daemon that is away."""
    observed, opened = ObservedEvents(), asyncio.Event()

    async def follow() -> None:
        async for event in client.events({"type": ["container"], "container": [container_id]}):
            opened.set()
            if observed.record(event):
                observed.changed.set()

    task = asyncio.create_task(follow())
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_WITHIN_S):
                await opened.wait()
        yield observed
    finally:
        task.cancel()
        await asyncio.wait([task])


async def wait_for_last_event(observed: ObservedEvents) -> None:
    """Wait for further events of an end: a kill may be the first part of a stop, or of a removal."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_EVENTS_S):
            await observed.ended.wait()


def describe_exit(container: Container | None, observed: ObservedEvents, log: Sequence[str] = ()) -> str:
    """Return how a container ended, the cause last: "exited with code 1: ValueError: …"."""
    cause = cause_in(log)
    how = _describe_exit(container, observed)
    if "with code 0" in how and any(_ENGINE_DIED.search(line) for line in log):
        how = f"{how}, after its engine died"
    return f"{how}: {cause}" if cause else how


def _describe_exit(container: Container | None, observed: ObservedEvents) -> str:
    if container is None:
        by_itself = observed.exit_code is not None and not observed.signals and not observed.oom
        if by_itself:
            return f"{how_it_ended(observed.exit_code)}, and its container was removed"
        return "was removed by a third party (docker rm)"
    state = container.state
    code = observed.exit_code if observed.exit_code is not None else state.exit_code
    if state.status == "created":
        return f"could not be started: {state.error or 'it was never started'}"
    if state.oom_killed or observed.oom:
        of = f" of {container.memory_limit // _MIB} MiB" if container.memory_limit else ""
        return f"was killed by the kernel, out of memory: it needed more than its limit{of}"
    if observed.stopped or signal.SIGTERM in observed.signals:
        project = container.compose_project
        by = f", or docker compose (project {project})" if project else ""
        return f"was stopped by a third party (docker stop{by}), {how_it_ended(code)}"
    if observed.signals:
        number = observed.signals[-1]
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was killed by a third party (docker kill, {name})"
    meaning = {126: ": its program may not be executed", 127: ": the image has no such program"}
    return how_it_ended(code) + meaning.get(code, "")


def was_ended_from_outside(container: Container | None, observed: ObservedEvents) -> bool:
    """Whether a third party ended the container, by docker stop, docker kill or docker rm."""
    if observed.oom or (
        container is not None and (container.state.oom_killed or container.state.status == "created")
    ):
        return False
    removed = container is None and observed.exit_code is None
    return removed or observed.stopped or bool(observed.signals)


def describe_restart(container: Container, observed: ObservedEvents, log: Sequence[str], before: int) -> str:
    """Describe why a container was started again by its restart policy. `before`: its first RestartCount."""
    times = container.restart_count - before
    oom, code = (observed.oom, observed.exit_code) if observed.exit_code is not None else observed.before
    how = "out of memory" if oom or container.state.oom_killed else ""
    if not how and code is not None:
        how = how_it_ended(code)
    cause = "; ".join(filter(None, (how, cause_in(log))))
    often = f" {times} times" if times > 1 else ""
    return f"was restarted by Docker{often}" + (f": {cause}" if cause else "")


def with_fix(message: str) -> str:
    """Return the message of the Engine, with the fix where one is known."""
    fixes = [fix for pattern, fix in _REFUSALS if re.search(pattern, message)]
    return f"{message} ({fixes[0]})" if fixes else message


def _number(text: str) -> int:
    return int(text) if _CODE.fullmatch(text) else 0
