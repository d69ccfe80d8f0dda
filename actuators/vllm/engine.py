"""Options and calls that the engines of vLLM servers have in common."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

import structlog

from flettner.actuators.host import ownership_env
from flettner.actuators.vllm.control import ControlEndpoint
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.model import Adapter, Server
from flettner.agent.domain.ports import Lock, Site
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.vllm_facts.live_limits import CONTROL
from flettner.vllm_facts.values import Setting

RECENT_LINES = 1000  # searched for signs of compilation: the last seconds
STEP_LINES = 1500  # 15 s at 100 steps a second, 0.3 MB
STEP = "Iteration("
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Raises ValueError for values that cannot work."""

    stop_s: float = 30.0  # from the stop signal to SIGKILL
    health_every_s: float = 1.0
    health_timeout_s: float = 5.0  # the event loop of a busy server stalls for seconds
    lost_after: int = 10  # failed health probes in a row: with the above, a hung server is lost in a minute

    def __post_init__(self) -> None:
        if self.stop_s < 0 or self.health_every_s <= 0 or self.health_timeout_s <= 0 or self.lost_after < 1:
            raise ValueError(
                "stop_s is at least 0, health_every_s and health_timeout_s above 0, lost_after at least 1"
            )

    def lock(self) -> Lock | None:
        """Return None: the lock of the state directory is enough for the servers of one host."""
        return None


def refuse_older_daemon(site: Site, newest: int) -> None:
    """Raises FencedError if a newer daemon, of the epoch `newest`, has started or kept a server here."""
    if newest > site.epoch:
        raise FencedError(
            f"a newer daemon (epoch {newest}) runs servers here; this one has epoch {site.epoch}"
        )


class VllmEngine(ABC):
    """The part of an engine that talks to its servers over HTTP, and the lock of each server."""

    progress = ""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reported: set[str] = set()

    @abstractmethod
    async def _api_key(self, server: Server) -> str:
        """Return the key that `/v1` asks for; empty if it asks for none."""

    @abstractmethod
    async def _recent_log(self, server: Server, lines: int = RECENT_LINES) -> Sequence[str]:
        """Return about the last `lines` lines of its log; () if it cannot be read."""

    async def obstacles(self) -> Sequence[str]:
        return ()

    async def _control(self, server: Server) -> ControlEndpoint | None:  # noqa: ARG002 - see the docstring
        """Return its control endpoint; None where it has none, or this engine cannot reach any."""
        return None

    async def set_knobs(
        self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None = None
    ) -> None:
        control = await self._control(server)
        if control is None:
            raise ActError(f"{server.name} has no {CONTROL} that can be reached: see docs/live-limits.md")
        if why := await self._why_not_own(control, server):
            raise ActError(why)
        await control.set(server, values, number, lease_s)

    async def _with_hot_knobs(self, servers: Sequence[Server]) -> Sequence[Server]:
        """The servers with what can be changed of them while they run, and what was changed so.

        Those that name the same socket have nothing: it may be any one's of them. Nor has one whose socket
        is that of another server, of another target for instance.
        """
        controls = await asyncio.gather(*map(self._control, servers))
        own = [control if controls.count(control) == 1 else None for control in controls]
        return await asyncio.gather(*map(self._add_knobs, own, servers))

    async def _add_knobs(self, control: ControlEndpoint | None, server: Server) -> Server:
        if control is None:
            return server
        if why := await self._why_not_own(control, server):
            if why not in self._reported:
                self._reported.add(why)
                log.warning("control.of_another_server", server=server.name, why=why)
            return server
        return await control.add_to(server)

    async def _why_not_own(self, control: ControlEndpoint, server: Server) -> str:
        other = await control.find_other_owner()
        if not other:
            return ""
        whose = await self._describe_process(other)
        return (
            f"{server.name} cannot be changed while it runs: {whose} listens at {control.path}, "
            f"the {CONTROL} of both; each server needs a path of its own"
        )

    async def _describe_process(self, pid: int) -> str:
        """Name the server that a process belongs to, if that is known."""
        return await asyncio.to_thread(ownership_env.describe, pid)

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        probe = await self._probe(server)
        await probe.warm_up(requests, deadline_s, prompts, prefixes, lambda: self._recent_log(server))

    async def step_log(self, server: Server) -> tuple[str, ...]:
        return tuple(line for line in await self._recent_log(server, STEP_LINES) if STEP in line)

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        return await (await self._probe(server)).answers(prompts, deadline_s)

    @abstractmethod
    async def check_address(self, server: Server) -> None:
        """Raises ActError if another process than the server may be reached at its address."""

    async def busy(self, server: Server) -> int | None:
        return await OpenAiProbe(address=server.address).busy()

    async def adapters(self, server: Server) -> tuple[Adapter, ...] | None:
        with suppress(ActError):
            return await (await self._probe(server)).adapters()
        return None

    async def put_adapters(
        self, server: Server, load: Sequence[Adapter], unload: Sequence[str] = ()
    ) -> Sequence[str]:
        return await (await self._probe(server)).put_adapters(load, unload)

    async def _probe(self, server: Server) -> OpenAiProbe:
        if not server.address:
            raise ActError(f"{server.name} has no address: it was never launched")
        return OpenAiProbe(address=server.address, api_key=await self._api_key(server))

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock of the server `name`: calls that change it take turns."""
        return self._locks.setdefault(name, asyncio.Lock())
