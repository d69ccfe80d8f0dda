"""The real engine of one daemon, with a fault point before and after each effect."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Adapter, PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Engine, Now, Site
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.vllm_facts.values import Setting
from tests.simulation.adapters import Host, Killed, alive

KUBECONFIG = Path(__file__).with_name("kubeconfig.json")
STATE_DIR = Path("/proc/flettner")  # nothing can be written there: each deadline is the default
_T = TypeVar("_T")


def engine_of(host: Host, names: tuple[str, ...], *, process: int, acts: bool) -> "FaultyEngine":
    file = f"{KUBECONFIG.parent}/{'./' * process}{KUBECONFIG.name}"  # for a connection of its own
    options = KubernetesPlugin(deployments=names, kubeconfig=file, health_every_s=2.0, lost_after=4)
    site = Site(target="chat", state_dir=STATE_DIR, epoch=host.epoch, acts=acts)
    return FaultyEngine(host, options.bind(site))


@dataclass(repr=False, slots=True)
class FaultyEngine:
    """The process may die before an effect begins, and after it is done."""

    host: Host
    inner: Engine
    progress: str = ""
    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def bind(self, site: Site) -> Engine:
        del site
        return self

    async def _perform(self, kind: str, name: str, ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        alive(self.host)
        fault = self.host.fault(kind)
        if fault is not None and fault.what == "crash before":
            self.host.kill()
            raise Killed
        self.host.called(kind, name, None)
        answer = await ask()
        alive(self.host)
        if fault is not None and fault.what == "crash after":
            self.host.kill()
            raise Killed
        return answer

    async def problems(self) -> Sequence[str]:
        return await self.inner.problems()

    async def obstacles(self) -> Sequence[str]:
        return await self.inner.obstacles()

    async def observe(self) -> Sequence[Server]:
        return await self.inner.observe()

    async def newest_epoch(self) -> int:
        return await self.inner.newest_epoch()

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        name = servers[0].name
        return await self._perform(
            "preflight", name, lambda: self.inner.preflight(servers, setting, wanted, start, gpu)
        )

    async def launch(self, server: Server, deadline_s: float) -> Server:
        return await self._perform("launch", server.name, lambda: self.inner.launch(server, deadline_s))

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        await self._perform(
            "warm_up",
            server.name,
            lambda: self.inner.warm_up(server, requests, deadline_s, prompts, prefixes),
        )

    async def adapters(self, server: Server) -> tuple[Adapter, ...] | None:
        return await self.inner.adapters(server)

    async def put_adapters(
        self, server: Server, load: Sequence[Adapter], unload: Sequence[str] = ()
    ) -> Sequence[str]:
        return await self.inner.put_adapters(server, load, unload)

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        return await self._perform(
            "examine", server.name, lambda: self.inner.answers(server, prompts, deadline_s)
        )

    async def check_address(self, server: Server) -> None:
        """It is always its own."""

    async def busy(self, server: Server) -> int | None:
        return await self.inner.busy(server)

    async def log(self, server: Server) -> tuple[str, ...]:
        return await self.inner.log(server)

    async def step_log(self, server: Server) -> tuple[str, ...]:
        return await self.inner.step_log(server)

    async def set_knobs(
        self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None = None
    ) -> None:
        await self.inner.set_knobs(server, values, number, lease_s)

    async def stop(self, server: Server, keep: int = 0) -> str | None:
        return await self._perform("stop", server.name, lambda: self.inner.stop(server, keep))

    async def retire(self, server: Server) -> str | None:
        return await self._perform("retire", server.name, lambda: self.inner.retire(server))

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        await self.inner.watch(server, emit, now)
