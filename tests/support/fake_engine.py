"""An in-memory engine that fails, dies or hangs on demand."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from flettner.actuators.vllm.control import newest_epoch
from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Adapter, PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Now, Site
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.vllm_facts.values import Setting
from tests.support.hot_servers import HotServers, knobs_of

STEP = (
    "Engine 000: Iteration({}): 1 context requests, 8 context tokens, 0 generation requests, "
    "0 generation tokens, iteration elapsed time: 4.10 ms, GPU KV cache usage: 0.1%"
)


class FakeEngine:
    """Every bound engine is this same one: the servers outlive the daemon that started them.

    next_error: raised once, by the next launch, warm-up or retirement.
    takes_s: how long each of those takes, in the loop's time.
    requests: what `busy` says, by server name.
    logs: what a server has written, by its name. unreadable: why no log can be read.
    calls: (what, server's name), in order.
    """

    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, *running: Server, takes_s: float = 0.0, target: str = "chat") -> None:
        self.servers = {server.name: server for server in running}
        self.progress = ""
        self.requests: dict[str, int] = {}
        self.logs: dict[str, tuple[str, ...]] = {}
        self.unreadable = ""
        self.log_takes_s = 0.0
        self.logs_read = 0
        self.calls: list[tuple[str, str]] = []
        self.next_error: ActError | None = None
        self.takes_s = takes_s
        self.site: Site | None = None
        self.target = target
        self.epoch = 0  # the newest one of a daemon that launched a server
        self.wrong: list[str] = []  # what `problems` says
        self.preflight_result = PreflightResult(why="memory has room for everything")
        self.wrong_answers: dict[str, str] = {}  # to every prompt, by server name
        self.warmed_with: tuple[str, ...] = ()  # prompts
        self.gpu = ""  # of the last preflight
        self.prefixes: tuple[SharedPrefix, ...] = ()  # of the last warm-up
        self.stopped: dict[str, Server] = {}
        self.hot = HotServers()
        self.loaded: dict[str, tuple[Adapter, ...]] = {}  # by server name
        self._ports = iter(range(8101, 9999))
        self._hanging: set[str] = set()
        self._changed = asyncio.Event()

    def die(self, name: str) -> None:
        """End the server's process without a report."""
        del self.servers[name]
        self._tell()

    def hang(self, name: str) -> None:
        """Make the server unresponsive."""
        self._hanging.add(name)
        self._tell()

    def wake(self, name: str) -> None:
        """Make a hanging server responsive."""
        self._hanging.discard(name)
        self._tell()

    def make_hot(self, name: str) -> None:
        """Give the server a control endpoint, as it has from its start on."""
        self.hot.knobs[name] = knobs_of(self.servers[name].setting, asyncio.get_running_loop().time)

    def bind(self, site: Site) -> "FakeEngine":
        self.site = site
        return self

    def lock(self) -> None:
        return None

    async def problems(self) -> Sequence[str]:
        return list(self.wrong)

    async def obstacles(self) -> Sequence[str]:
        return ()

    async def observe(self) -> Sequence[Server]:
        return [self.hot.describe(server) for server in self.servers.values()]

    async def newest_epoch(self) -> int:
        return max(self.epoch, newest_epoch(await self.observe()))

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        del setting, start
        self.gpu = gpu
        self.calls.append(("preflight", servers[0].name))
        return self.preflight_result if wanted == "auto" else replace(self.preflight_result, strategy=wanted)

    async def launch(self, server: Server, deadline_s: float) -> Server:
        if server.name in self.servers:
            self.calls.append(("launch", server.name))
            self.servers[server.name] = replace(self.servers[server.name], replicas=server.replicas)
            return self.servers[server.name]
        await self._act("launch", server, deadline_s)
        if server.name in self.servers:  # a concurrent launch was faster
            return self.servers[server.name]
        if again := self.stopped.pop(server.name, None):
            self.servers[server.name] = again
            return again
        self.epoch = max(self.epoch, self.site.epoch if self.site else 0)
        setting = {knob: value for knob, value in server.setting.items() if value is not None}
        address = f"127.0.0.1:{next(self._ports)}"
        self.servers[server.name] = replace(server, setting=setting, address=address, ours=True)
        self.logs[server.name] = (f"serving at {address}",)
        return replace(server, address=address, ours=True)

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        self.warmed_with, self.prefixes = tuple(prompts), tuple(prefixes)
        await self._act("warm_up", server, deadline_s)
        if not self._answers(server):
            raise ActError(f"{server.name}: {requests} of {requests} warm-up requests failed")
        if server.setting.get("enable_logging_iteration_details"):
            self.logs[server.name] += tuple(map(STEP.format, range(requests)))

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        await self._act("answers", server, deadline_s)
        if not self._answers(server):
            raise ActError(f"{server.name}: /v1/models names no model")
        texts = [self.wrong_answers.get(server.name) or f"all about {prompt}" for prompt in prompts]
        return tuple(
            GoldenAnswer(text=text, finish_reason="stop", length=len(text.split())) for text in texts
        )

    async def adapters(self, server: Server) -> tuple[Adapter, ...] | None:
        return self.loaded.get(server.name, ()) if self._answers(server) else None

    async def put_adapters(
        self, server: Server, load: Sequence[Adapter], unload: Sequence[str] = ()
    ) -> Sequence[str]:
        if not self._answers(server):
            raise ActError(f"{server.name}: the adapters cannot be changed")
        refused = [adapter for adapter in load if "missing" in adapter.path]
        kept = {adapter.name: adapter for adapter in self.loaded.get(server.name, ())}
        kept |= {adapter.name: adapter for adapter in load if adapter not in refused}
        self.loaded[server.name] = tuple(kept[name] for name in sorted(kept) if name not in unload)
        return [f"it does not load the adapter {adapter.name}" for adapter in refused]

    async def log(self, server: Server) -> tuple[str, ...]:
        self.logs_read += 1
        await asyncio.sleep(self.log_takes_s)
        if self.unreadable:
            raise ActError(self.unreadable)
        return self.logs.get(server.name, ())

    async def step_log(self, server: Server) -> tuple[str, ...]:
        return tuple(line for line in self.logs.get(server.name, ()) if "Iteration(" in line)

    async def check_address(self, server: Server) -> None:
        """It is always its own."""

    async def busy(self, server: Server) -> int | None:
        return self.requests.get(server.name, 0) if self._answers(server) else None

    async def set_knobs(
        self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None = None
    ) -> None:
        await self._act("set_knobs", server, None)
        if not self._answers(server):
            raise ActError(f"{server.name} does not answer")
        self.hot.set(server, values, number, lease_s)

    async def stop(self, server: Server, keep: int = 0) -> None:
        await self._act("stop", server, None)
        if keep and server.name in self.servers:
            self.servers[server.name] = replace(self.servers[server.name], replicas=keep)
        elif (running := self.servers.pop(server.name, None)) is not None:
            self.stopped[server.name] = running
        self._tell()

    async def retire(self, server: Server) -> None:
        await self._act("retire", server, None)
        self.stopped.pop(server.name, None)
        self.servers.pop(server.name, None)
        self._tell()

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        def tell(why: str, *, gone: bool) -> None:
            why = f"{server.name} {why}"
            emit(ServerLost(at=now(), server=server.name, why=why, gone=gone, log=("its last line",)))

        answered = True
        while server.name in self.servers:
            answers = self._answers(server)
            if answered and not answers:
                tell("failed its health check: /health does not answer", gone=False)
            answered = answers
            await self._changed.wait()
        tell("exited with code 0", gone=True)

    def _answers(self, server: Server) -> bool:
        return server.name in self.servers and server.name not in self._hanging

    async def _act(self, what: str, server: Server, deadline_s: float | None) -> None:
        self.calls.append((what, server.name))
        error, self.next_error = self.next_error, None
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.sleep(self.takes_s)
        except TimeoutError as late:
            raise ActError(f"{server.name} took longer than {deadline_s:g} s") from late
        if error:
            raise error

    def _tell(self) -> None:
        """Wake the watches; each waits for the next change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
