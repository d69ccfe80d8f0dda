"""The network between a daemon, the API server and the pods; a fault may hit each request."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import httpx2
from lightkube import KubeConfig

from flettner.actuators.vllm.probe import HealthAnswer, OpenAiProbe
from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Adapter
from tests.simulation.adapters import Host, Killed, alive
from tests.simulation.clock import OWNER, Owner
from tests.simulation.kubernetes.world import FLETTNER, KubernetesWorld
from tests.support.kubernetes.memory.server import RefusedError, Request
from tests.support.kubernetes.memory.transport import MemoryTransport, refusal

AWAY, SLOW, THROTTLED = "API server away", "API server slow", "API server throttles"
STALLED = "watches stall"
_TAKES_S = (0.005, 0.08)
_SLOW_S = (1.0, 20.0)
_LATE_S = 8.0
_PROBE_S = (0.005, 0.05)
_WARM_UP_S = (0.5, 1.5)
_CONFIG = cache(KubeConfig.from_file)  # a file that does not change; half of the time would be its parsing
_REFUSALS = {
    "throttled": (429, "Too many requests, please try again later."),
    "error": (500, "etcdserver: leader changed"),
    "unavailable": (503, "the server is currently unable to handle the request"),
}


class Site(Protocol):
    """What the network knows of a history."""

    @property
    def world(self) -> KubernetesWorld: ...
    def host_of(self, owner: Owner | None) -> Host:
        """The daemon whose code runs."""
        ...

    def disturb(self, path: str) -> None:
        """Another client writes the object of this path."""
        ...


class Network:
    """The requests of all daemons of a history."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.transports: list[MemoryTransport] = []

    @property
    def world(self) -> KubernetesWorld:
        return self._site.world

    def transport(self, *_: object, **__: object) -> MemoryTransport:
        """As httpx2 makes one for a client."""
        made = MemoryTransport(
            server=self.world.cluster.server,
            later=self.world.loop.outside,
            deliver=self._deliver,
            client=lambda: client_name(self._host().epoch),
            stalled=lambda: self._site.host_of(None).active(STALLED),
        )
        self.transports.append(made)
        return made

    def cut_watches(self) -> None:
        for transport in self.transports:
            for watch in [*transport.watches]:
                watch.cut()

    def catch_up(self) -> None:
        for transport in self.transports:
            for watch in [*transport.watches]:
                watch.catch_up()

    async def _deliver(self, request: Request, answer: Callable[[], httpx2.Response]) -> httpx2.Response:
        host, world = self._host(), self.world
        fault = host.fault("read" if request.method == "GET" else "write")
        what = fault.what if fault else ""
        if what == "crash before":
            host.kill()
            raise Killed
        if host.active(AWAY) or what == "refused":
            await self._wait(world.random.uniform(*_TAKES_S))
            raise httpx2.ConnectError("All connection attempts failed")
        lasts_s = world.random.uniform(*(_SLOW_S if host.active(SLOW) else _TAKES_S))
        if (host.active(THROTTLED) and world.random.random() < 0.7) or what in _REFUSALS:
            await self._wait(lasts_s)
            code, message = _REFUSALS.get(what, _REFUSALS["throttled"])
            return refusal(RefusedError(code, message), **({"Retry-After": "1"} if code == 429 else {}))
        if what == "conflict":
            self._site.disturb(request.path)
        return await self._perform(host, answer, what, lasts_s)

    async def _perform(
        self, host: Host, answer: Callable[[], httpx2.Response], what: str, lasts_s: float
    ) -> httpx2.Response:
        """Also where the caller gives up meanwhile: the request is on its way."""
        loop = self.world.loop
        reply: asyncio.Future[httpx2.Response] = loop.create_future()

        def perform() -> None:
            response = answer()
            if what == "crash after":
                host.kill()
            elif what != "reply lost":
                loop.outside(0.002, lambda: None if reply.done() else reply.set_result(response))

        loop.outside(lasts_s + (_LATE_S if what == "late" else 0.0), perform)
        if what == "reply lost":
            loop.outside(lasts_s + 5.0, lambda: _fail(reply))
        result = await reply
        alive(host)
        return result

    def _host(self) -> Host:
        host = self._site.host_of(OWNER.get())
        alive(host)
        return host

    async def _wait(self, seconds: float) -> None:
        host = self._host()
        await asyncio.sleep(seconds)
        alive(host)

    # vLLM in the pods.

    async def health(self, probe: OpenAiProbe, timeout_s: float = 5.0) -> HealthAnswer:
        await self._wait(self.world.random.uniform(*_PROBE_S))
        backend = self.world.at(probe.address)
        if backend is None or backend.status == "starting":
            return HealthAnswer(why="/health is not reachable: refused", refused=True)
        if backend.status == "hung":
            await self._wait(timeout_s)
            return HealthAnswer(why=f"/health does not answer within {timeout_s:g} s")
        return HealthAnswer(status=200)

    async def busy(self, probe: OpenAiProbe, timeout_s: float = 5.0) -> int | None:
        await self._wait(self.world.random.uniform(*_PROBE_S))
        backend = self.world.at(probe.address)
        if backend is not None and backend.status == "hung":
            await self._wait(timeout_s)
        return len(backend.open) if backend is not None and backend.answers else None

    async def warm_up(self, probe: OpenAiProbe, *_: object, **__: object) -> None:
        await self._wait(self.world.random.uniform(*_WARM_UP_S))
        backend = self.world.at(probe.address)
        if backend is None or backend.status != "healthy":
            raise ActError(f"{probe.address}: its warm-up requests failed")

    async def adapters(self, probe: OpenAiProbe) -> tuple[Adapter, ...] | None:
        await self._wait(self.world.random.uniform(*_PROBE_S))
        backend = self.world.at(probe.address)
        if backend is None or not backend.answers:
            return None
        return tuple(Adapter(name=name, path=f"/{name}") for name in sorted(backend.adapters))

    async def put_adapters(
        self, probe: OpenAiProbe, load: Sequence[Adapter], unload: Sequence[str] = ()
    ) -> tuple[str, ...]:
        await self._wait(self.world.random.uniform(*_PROBE_S))
        backend = self.world.at(probe.address)
        if backend is None or not backend.answers:
            raise ActError(f"{probe.address}: the adapters cannot be changed")
        backend.adapters = (backend.adapters | {adapter.name for adapter in load}) - {*unload}
        return ()

    async def answers(
        self, probe: OpenAiProbe, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        del deadline_s
        await self._wait(self.world.random.uniform(*_PROBE_S))
        backend = self.world.at(probe.address)
        if backend is None or backend.status != "healthy":
            raise ActError(f"{probe.address}: it does not answer")
        says = "nonsense of nonsense" if self.world.boot_of_backend(backend).nonsense else "all about"
        return tuple(
            GoldenAnswer(text=f"{says} {prompt}", finish_reason="stop", length=len(prompt.split()) + 2)
            for prompt in prompts
        )


def _fail(reply: "asyncio.Future[httpx2.Response]") -> None:
    if not reply.done():
        reply.set_exception(httpx2.ReadTimeout("no answer"))


@contextmanager
def installed(network: Network) -> Iterator[None]:
    """Let every HTTP client of the product use this network."""
    owners: list[tuple[Any, str, object]] = [
        (httpx2._client, "AsyncHTTPTransport", network.transport),
        (KubeConfig, "from_file", _CONFIG),
        *(
            (OpenAiProbe, name, _method(getattr(network, name)))
            for name in ("health", "busy", "warm_up", "answers", "adapters", "put_adapters")
        ),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in owners]
    for owner, name, new in owners:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


def _method(call: Callable[..., Any]) -> Callable[..., Any]:
    async def method(probe: OpenAiProbe, *given: object, **named: object) -> object:
        return await call(probe, *given, **named)

    return method


def client_name(epoch: int) -> str:
    return f"{FLETTNER}{epoch}"
