"""A daemon with any number of targets: real Envoys, simulated servers, and one client for each target."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from json import dumps
from math import inf
from pathlib import Path

from aiohttp import ClientSession

from bench.usage import Usage, usage_of
from flettner.actuators.host import procfs
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.simulator.workload import Shape
from tests.support.config_builder import SERVER, SiteConfig
from tests.support.rig import SHAPE, Rig, at_rest, until

API, LISTEN, SERVERS = 32_700, 32_000, 30_200  # below the ephemeral range
PORTS = 10  # of each target's servers
LAG = "flettner_loop_lag_seconds_"
NOTHING = Usage()
WORKER = "flettner.agent.prediction.worker_process"
READY_S = 900.0  # fifty servers start at once
LARGE_SERVER = (*SERVER, "--sim-speed", "3", "--max-num-seqs", "64")


@dataclass(frozen=True, kw_only=True)
class CapacityConfig(SiteConfig):
    """Default options for all but the mode (`advise` starts no server), addresses and the time to start.

    `first_port`: of the servers. `model`: whether it learns the targets, and the policy `model` advises.
    """

    targets: int = 1
    server: tuple[str, ...] = LARGE_SERVER
    first_port: int = SERVERS
    model: bool | None = None

    def text(self, *, api: int, listen: int) -> str:
        head = f"""
            [agent]
            state_dir = "s"
            mode = "approve"
            {"" if self.model is None else f"learn = {str(self.model).lower()}"}
            [api]
            listen = "127.0.0.1:{api}"
            tokens_file = "tokens"
            {"" if self.model is None else f"[policies]{chr(10)}model = {str(self.model).lower()}"}
        """
        return head + "".join(map(partial(self._target, listen), range(self.targets)))

    def _target(self, listen: int, number: int) -> str:
        first = self.first_port + PORTS * number
        return f"""
            [[targets]]
            name = "{name_of(number)}"
            [targets.slo]
            ttft = {{ under = "2s", share = 0.95 }}
            [targets.engine]
            kind = "process"
            command = {dumps(self.server)}
            ports = [{first}, {first + PORTS - 1}]
            [targets.traffic]
            listen = "127.0.0.1:{listen + number}"
            [targets.rollout]
            start = "{READY_S:g}s"
        """


def name_of(target: int) -> str:
    return f"t{target}"


@dataclass(frozen=True, slots=True)
class Ticks:
    """Seconds that the loops of all targets have processed: fewer than passed on a busy machine.

    `upto`: by the upper edge of their delay, s; cumulative.
    """

    upto: Counter[float] = field(default_factory=Counter)

    def __sub__(self, earlier: "Ticks") -> "Ticks":
        return Ticks(Counter({edge: count - earlier.upto[edge] for edge, count in self.upto.items()}))

    @property
    def count(self) -> int:
        return self.upto[inf]

    def late_s(self, share: float) -> float:
        """Return an upper bound of the delay of this share of the ticks, by the edges of the histogram."""
        return min(edge for edge, count in self.upto.items() if count >= share * self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the processes of a site have used so far. `worker`: in which the daemon learns and predicts."""

    at_s: float
    daemon: Usage
    ticks: Ticks
    envoy: Usage = NOTHING
    worker: Usage = NOTHING


def cpu_percent(now: Usage, before: Usage, of_s: float) -> float:
    return round(100 * (now.cpu_s - before.cpu_s) / max(of_s, 1e-9), 2)


@dataclass(slots=True, kw_only=True)
class CapacitySite:
    rig: Rig
    clients: list[TrafficGenerator]

    async def look(self) -> Look:
        assert self.rig.daemon is not None
        daemon, envoy = self.rig.daemon.pid, self.rig.envoy.find()
        ticks = await self._ticks()
        return Look(
            at_s=asyncio.get_running_loop().time(),
            daemon=usage_of(daemon),
            envoy=usage_of(*() if envoy is None else (envoy,)),
            worker=usage_of(
                *(
                    process.pid
                    for process in procfs.processes()
                    if process.parent == daemon and WORKER in procfs.words(process.pid)
                )
            ),
            ticks=ticks,
        )

    def journal_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.rig.state_dir.glob("audit*.jsonl"))

    async def entries(self) -> int:
        status, document = await self.rig.ask("GET", "/v1/me")
        assert status == 200, document  # noqa: PLR2004 - HTTP
        return int(document["head"])

    async def _ticks(self) -> Ticks:
        headers = {"Authorization": f"Bearer {self.rig.token}"}
        url = f"http://127.0.0.1:{self.rig.api}/metrics"
        ticks = Ticks()
        async with ClientSession(headers=headers) as session, session.get(url) as response:
            for line in (await response.text()).splitlines():
                if line.startswith(f"{LAG}bucket"):
                    edge = float(line.partition('le="')[2].partition('"')[0])
                    ticks.upto[edge] += int(float(line.split()[-1]))
        return ticks

    def counts(self) -> dict[str, int]:
        """Return the requests of all clients, by outcome."""
        each = [client.tally.counts() for client in self.clients]
        return {outcome: sum(counts[outcome] for counts in each) for outcome in each[0]}


@asynccontextmanager
async def running(
    home: Path,
    targets: int,
    rate: float,
    *,
    config: CapacityConfig | None = None,
    api: int = API,
    listen: int = LISTEN,
    shape: Shape = SHAPE,
) -> AsyncIterator[CapacitySite]:
    """Run a site with `rate` requests/s for each target, until the exit; all requests have ended then."""
    rig = Rig(home=home, site_config=config or CapacityConfig(targets=targets), api=api, listen=listen)
    rig.prepare()
    try:
        await rig.start()
        await until(partial(_resting, rig), targets.__eq__, "one server of each target at rest", READY_S)
        site = CapacitySite(rig=rig, clients=[])
        async with AsyncExitStack() as stack:
            for number in range(targets):
                url = f"http://127.0.0.1:{listen + number}"
                client = TrafficGenerator(
                    url, "tiny", Load(rate=rate), shape=shape, seed=number, timeout_s=60.0
                )
                await client.start()
                stack.push_async_callback(client.stop)
                site.clients.append(client)
            yield site
    finally:
        _tear_down(rig)


async def _resting(rig: Rig) -> int:
    assert rig.daemon is not None
    assert rig.daemon.returncode is None, rig.log()[-2000:]
    status, document = await rig.ask("GET", "/v1/targets")
    return sum(map(at_rest, document["targets"])) if status == 200 else 0  # noqa: PLR2004 - HTTP


def _tear_down(rig: Rig) -> None:
    """Kill the daemon, its servers and its Envoys."""
    if rig.daemon is not None and rig.daemon.returncode is None:
        os.killpg(rig.daemon.pid, signal.SIGKILL)
    states = str(rig.state_dir.resolve())
    for process in procfs.processes():
        if procfs.environment(process.pid).get("FLETTNER_STATE", "").startswith(f"{states}/"):
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(process.pid), signal.SIGKILL)
    rig.envoy.end()
