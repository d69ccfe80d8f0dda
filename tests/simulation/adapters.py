"""The daemon's ports into the simulated world. A fault may hit each call before, during or after it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Adapter, PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Engine, Now, Site
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.machine.strategy import HostCapacity, choose_strategy
from flettner.vllm_facts.values import Setting
from tests.simulation.scenario import Act
from tests.simulation.world import Process, World

NO_ANSWER_S = 20.0  # when a caller stops waiting for a reply
STUCK_S = 40.0
LATE_S = 8.0
LOOKS_S = 0.5  # of a launch, for health
NOTICED_S = (0.2, 2.0)  # an exit, or silence
OUTAGE_S = 8.0


class Killed(BaseException):
    """The process was killed: its remaining code must not change the world."""


class Host(Protocol):
    """The interface of the daemon process for the adapters."""

    world: World
    epoch: int

    @property
    def dead(self) -> bool: ...
    def kill(self) -> None: ...
    def fault(self, on: str) -> Act | None:
        """The fault of this call, if any; each fault fires once."""
        ...

    def called(self, kind: str, name: str, route: Route | None) -> None: ...
    def active(self, what: str) -> bool:
        """Whether this lasting fault is active."""
        ...


async def call(
    host: Host,
    kind: str,
    name: str,
    do: Callable[[], None],
    takes_s: tuple[float, float],
    *,
    route: Route | None = None,
    fence: Callable[[], None] = lambda: None,
) -> bool:
    """Perform a call on the world and wait for its reply; True if the reply is wrong.

    Raises ActError, FencedError; Killed where the process dies of it.
    """
    world = host.world
    alive(host)
    fault = host.fault(kind)
    what = fault.what if fault else ""
    if what == "crash before":
        host.kill()
        raise Killed
    fence()
    host.called(kind, name, route)
    lasts_s = world.random.uniform(*takes_s)
    if what in {"refused", "stuck"}:
        await wait(host, STUCK_S if what == "stuck" else lasts_s)
        raise ActError(f"{kind} of {name or 'the split'}: {what}")
    reply = sent(host, what, do, lasts_s)
    try:
        async with asyncio.timeout(NO_ANSWER_S):
            await reply
    except TimeoutError as error:
        raise ActError(f"{kind} of {name or 'the split'}: no answer within {NO_ANSWER_S:g} s") from error
    alive(host)
    if what == "failed but done":
        raise ActError(f"{kind} of {name or 'the split'}: the connection broke")
    return what == "wrong"


def sent(host: Host, what: str, do: Callable[[], None], lasts_s: float) -> "asyncio.Future[None]":
    """Send a call: performed after `lasts_s`, once or twice; the reply follows, or never."""
    loop = host.world.loop
    reply: asyncio.Future[None] = loop.create_future()

    def arrive() -> None:
        if not reply.done():
            reply.set_result(None)

    def perform() -> None:
        replaced = host.world.split is not None and host.world.split.epoch > host.epoch
        if what == "late" and (host.dead or replaced or reply.cancelled()):
            return  # the process was killed, or the call was cancelled
        do()
        if what == "crash after":
            host.kill()
        elif what != "reply lost":
            loop.outside(0.01, arrive)

    loop.outside(lasts_s + (LATE_S if what == "late" else 0.0), perform)
    if what == "twice":
        loop.outside(lasts_s * 0.5, perform)
    return reply


async def wait(host: Host, seconds: float) -> None:
    await asyncio.sleep(seconds)
    alive(host)


def alive(host: Host) -> None:
    if host.dead:
        raise Killed


def seen(world: World, process: Process) -> Server:
    return world.hot.describe(
        Server(
            name=process.name,
            setting=dict(process.setting),  # type: ignore[arg-type]
            address=process.address,
            ours=process.ours,
            like=process.like,
        )
    )


@dataclass(repr=False, slots=True)
class SimEngine:
    """Servers of the world; each call under the epoch of the process that makes it."""

    host: Host
    strategy: Strategy
    numbers: set[tuple[tuple[int, int], str]] = field(default_factory=set)  # of knobs, and their servers
    progress: str = ""
    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def bind(self, site: Site) -> Engine:
        del site
        return self

    async def problems(self) -> Sequence[str]:
        return ()

    async def obstacles(self) -> Sequence[str]:
        return ()

    def _newest_epoch(self) -> int:
        world = self.host.world
        return max((p.epoch for p in (*world.servers.values(), *world.stopped.values())), default=0)

    async def newest_epoch(self) -> int:
        return self._newest_epoch()

    def _fence(self) -> None:
        """Fence like the engines: by the epoch of a newer daemon's servers."""
        fenced(self._newest_epoch(), self.host.epoch)

    async def observe(self) -> Sequence[Server]:
        await wait(self.host, 0.05)
        return [seen(self.host.world, process) for process in self.host.world.servers.values()]

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        del setting, start, gpu
        strategy: Strategy = "surge" if self.strategy == "save" and wanted != "save" else self.strategy
        free = HostCapacity(free=strategy == "surge", why="so it was set up")
        choice = choose_strategy(strategy, len(servers), free)
        if choice.strategy is None and strategy != "save":
            return PreflightResult(problem=choice.why)
        wrong = await call(self.host, "preflight", servers[0].name, lambda: None, (0.2, 1.0))
        if wrong:
            return PreflightResult(problem="max_num_seqs: a number was expected", lasting=True)
        outage_s = OUTAGE_S if strategy == "swap" else 0.0
        return PreflightResult(strategy=strategy, outage_s=outage_s, why="so it was set up")

    async def launch(self, server: Server, deadline_s: float) -> Server:
        host, world = self.host, self.host.world
        setting: dict[str, object] = {k: value for k, value in server.setting.items() if value is not None}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        try:
            await self._ask_to_start(server, setting)
            while (process := world.servers.get(server.name)) is not None and not process.answers:
                if loop.time() > deadline:
                    break
                await wait(host, LOOKS_S)
            _up(server.name, process)
            assert process is not None
        except (ActError, asyncio.CancelledError) as error:
            if not host.dead and not isinstance(error, FencedError) and not self._older():
                stopped = server.name in world.stopped or not self._new(server)
                world.loop.outside(0.1, lambda: self._undo(server.name, keep=stopped))
                await wait(host, 0.2)
            raise
        return seen(world, process)

    async def _ask_to_start(self, server: Server, setting: dict[str, object]) -> None:
        """Without a valid reply, observe whether the server has started."""
        world = self.host.world
        if why := world.find_failed_wake(server.name):
            raise ActError(f"{server.name} {why}: it is started instead")
        try:
            await call(
                self.host,
                "launch",
                server.name,
                lambda: world.start(server.name, dict(setting), server.like, self.host.epoch),
                (0.1, 0.4),
                fence=self._fence,
            )
        except FencedError:
            raise
        except ActError:
            if server.name not in world.servers:
                raise

    def _older(self) -> bool:
        """Whether a newer daemon has taken over; this one must not undo the launch."""
        split = self.host.world.split
        return split is not None and split.epoch > self.host.epoch

    def _new(self, server: Server) -> bool:
        process = self.host.world.servers.get(server.name)
        return process is None or (process.ours and process.epoch == self.host.epoch)

    def _undo(self, name: str, *, keep: bool) -> None:
        if name in self.host.world.servers or name in self.host.world.stopped:
            self.host.world.finish(name, self.host.epoch, keep=keep)

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        del requests, deadline_s, prompts, prefixes
        wrong = await call(self.host, "warm_up", server.name, lambda: None, (0.5, 1.5))
        if wrong or not self.host.world.answers(server.name):
            raise ActError(f"{server.name}: its warm-up requests failed")

    async def adapters(self, server: Server) -> tuple[Adapter, ...] | None:
        await wait(self.host, 0.01)
        process = self.host.world.servers.get(server.name)
        if process is None or not process.answers:
            return None
        return tuple(Adapter(name=name, path=f"/{name}") for name in sorted(process.adapters))

    async def put_adapters(
        self, server: Server, load: Sequence[Adapter], unload: Sequence[str] = ()
    ) -> Sequence[str]:
        refused = list[str]()

        def put() -> None:
            process = self.host.world.servers.get(server.name)
            if process is None or not process.answers:
                refused.append(f"{server.name}: the adapters cannot be changed")
            else:
                process.adapters = (process.adapters | {adapter.name for adapter in load}) - {*unload}

        wrong = await call(self.host, "keep_adapters", server.name, put, (0.01, 0.1))
        if refused:
            raise ActError(refused[0])
        if wrong:
            raise ActError(f"{server.name}: the answer cannot be read")
        return ()

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        del deadline_s
        wrong = await call(self.host, "examine", server.name, lambda: None, (0.1, 0.3))
        process = self.host.world.servers.get(server.name)
        if process is None or not process.answers:
            raise ActError(f"{server.name}: it does not answer")
        says = "nonsense of nonsense" if wrong or self.host.world.boot_of(process).nonsense else "all about"
        return tuple(
            GoldenAnswer(text=f"{says} {prompt}", finish_reason="stop", length=len(prompt.split()) + 2)
            for prompt in prompts
        )

    async def check_address(self, server: Server) -> None:
        """It is always its own."""

    async def busy(self, server: Server) -> int | None:
        alive(self.host)
        if not self.host.world.answers(server.name):
            return None
        return self.host.world.open_at(server.name)

    async def log(self, server: Server) -> tuple[str, ...]:
        alive(self.host)
        return ("its last line",) if server.name in self.host.world.servers else ()

    async def step_log(self, server: Server) -> tuple[str, ...]:
        return tuple(line for line in await self.log(server) if "Iteration(" in line)

    async def set_knobs(
        self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None = None
    ) -> None:
        host, refused = self.host, list[ActError]()

        def put() -> None:
            try:
                host.world.set_knobs(server, values, number, lease_s)
            except ActError as error:
                refused.append(error)

        kind = "keep_knobs" if (number, server.name) in self.numbers else "set_knobs"
        self.numbers.add((number, server.name))
        wrong = await call(host, kind, str(number[1]), put, (0.01, 0.1))
        if wrong:
            raise ActError(f"{server.name}: the answer cannot be read")
        if refused:
            raise refused[0]

    async def stop(self, server: Server, keep: int = 0) -> None:
        del keep  # these servers have no replicas
        await self._end("stop", server.name, keep=True)

    async def retire(self, server: Server) -> None:
        await self._end("retire", server.name, keep=False)

    async def _end(self, kind: str, name: str, *, keep: bool) -> None:
        world = self.host.world
        wrong = await call(
            self.host,
            kind,
            name,
            lambda: world.finish(name, self.host.epoch, keep=keep),
            (0.2, 1.5),
            fence=self._fence,
        )
        if wrong:
            raise ActError(f"{kind} of {name}: the answer cannot be read")

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        world = self.host.world
        reported, process = False, world.servers.get(server.name)
        while (
            process is not None and world.servers.get(server.name) is process
        ):  # not another server of its name
            silent = not process.answers and process.status != "starting"
            if silent and not reported:
                emit(ServerLost(at=now(), server=server.name, why="it is silent", gone=False))
            reported = silent
            await world.change_of(server.name)
            await wait(self.host, world.random.uniform(*NOTICED_S))
        emit(ServerLost(at=now(), server=server.name, why="it exited", log=("its last line",)))


def fenced(newest: int, epoch: int) -> None:
    if newest > epoch:
        raise FencedError(f"a daemon of epoch {newest} acts here, this one is {epoch}")


def _up(name: str, process: Process | None) -> None:
    if process is None or not process.answers:
        raise ActError(f"{name}: it did not come up", ("last",))
