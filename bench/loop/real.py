"""One run of a world in real time: daemon, Envoy and servers as processes, over public interfaces only."""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import process_time

import aiohttp

from bench.loop.clients import Clients
from bench.loop.config import config_text
from bench.loop.run import Books, Run
from bench.loop.static import LATE_S
from bench.loop.world import MODEL, World
from flettner.agent.audit.records import parse_state
from flettner.agent.domain.reading import RequestOutcome
from flettner.primitives.wall_clock import utc_now
from flettner.simulator.answer import CompletionWriter
from flettner.simulator.scheduler import SimulatedRequest
from flettner.simulator.text import draws
from flettner.simulator.workload import prose
from tests.support.config_builder import SERVERS, TARGET, SiteConfig
from tests.support.rig import Rig, at_rest, until
from tests.support.virtual_server import Ended, VirtualServer

LOOK_S = 1.0
SETTLED_S = 2.0  # from the first server to the begin of the load
START_S = 120.0  # beyond the simulated start
OUTCOMES: Mapping[str, RequestOutcome] = {"ok": "ok", "truncated": "truncated", "aborted": "aborted"}


@dataclass(frozen=True, kw_only=True)
class WorldConfig(SiteConfig):
    """The config of an operator who gives engine, traffic and SLO, and leaves the rest to the defaults."""

    world: World

    def text(self, *, api: int, listen: int) -> str:
        ports = f"ports = [{SERVERS[0]}, {SERVERS[-1]}]"
        address = f"127.0.0.1:{listen}"
        targets = config_text(self.world, TARGET, python=sys.executable, listen=address, engine=ports)
        return f"""{targets}
            [api]
            listen = "127.0.0.1:{api}"
            tokens_file = "tokens"
        """


@dataclass(slots=True, kw_only=True)
class _Load:
    """What the clients of a world saw; in seconds since the begin of the load."""

    world: World
    url: str
    began: datetime
    ended: list[Ended] = field(default_factory=list)
    sent: int = 0

    @property
    def now_s(self) -> float:
        return (utc_now() - self.began).total_seconds()

    async def drive(self, seed: int) -> None:
        """Send every request when it is due; wait for the last answers."""
        waiting = set[asyncio.Task[None]]()
        timeout = aiohttp.ClientTimeout(total=VirtualServer.patience_s)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            for arrival in Clients(self.world, seed).until(self.world.seconds):
                await asyncio.sleep(max(0.0, arrival.request.arrived_at - self.now_s))
                self.sent += 1
                task = asyncio.create_task(self._send(session, arrival.request))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await asyncio.sleep(max(0.0, self.world.seconds - self.now_s))
            if waiting:
                _, late = await asyncio.wait(waiting, timeout=LATE_S)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)

    async def _send(self, session: aiohttp.ClientSession, request: SimulatedRequest) -> None:
        """Send one request and keep what its client saw."""
        clock = asyncio.get_running_loop().time
        arrived_s, answer = self.now_s, CompletionWriter(at=clock())
        outcome: RequestOutcome
        body = {
            "model": MODEL,
            "prompt": self._prompt(request),
            "max_tokens": request.wanted,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                async for line in response.content:
                    answer.take(line, clock())
                seen, _ = answer.verdict() if response.status == 200 else answer.cut("")  # noqa: PLR2004
            outcome = OUTCOMES.get(seen, "failed")
        except TimeoutError:
            outcome = "gave_up"
        except (aiohttp.ClientError, ConnectionError, ValueError):
            outcome = OUTCOMES.get(answer.cut("")[0], "failed")
        self.ended.append(Ended("", arrived_s, self.now_s, outcome, answer.ttft_s, answer.itl_s))

    def _prompt(self, request: SimulatedRequest) -> str:
        shared = self.world.shared_prefix
        own = prose(draws(0, request.name), request.prompt - shared)
        return prose(draws(0, "shared"), shared) + f"{request.name:>8}"[:8] + own[8:]


def play(world: World, seed: int) -> Run:
    """Run the world once; what the clients send is that of the seed, the rest is real."""
    with tempfile.TemporaryDirectory(prefix="loop-") as home:
        return asyncio.run(_play(world, seed, Path(home)))


async def _play(world: World, seed: int, home: Path) -> Run:
    rig, books = Rig(home=home, site_config=WorldConfig(world=world)), Books()
    try:
        rig.prepare()
        await rig.start()
        await until(rig.target, at_rest, "the first server", START_S + world.start_s)
        await asyncio.sleep(SETTLED_S)
        load = _Load(world=world, url=rig.url, began=utc_now())
        async with asyncio.TaskGroup() as tasks:
            operating = tasks.create_task(_operate(rig, world, load, books))
            await load.drive(seed)
            operating.cancel()
        _read_journal(rig, load.began, books)
    finally:
        await rig.tear_down()
    return books.close(world, seed, began_s=0.0, ended=load.ended, sent=load.sent, cpu_s=process_time())


async def _operate(rig: Rig, world: World, load: _Load, books: Books) -> None:
    """Approve the first open suggestion, as it is then, `think_s` after it was seen; not in auto mode."""
    seen: dict[str, float] = {}
    while world.mode == "approve":
        await asyncio.sleep(LOOK_S)
        first = (await rig.target()).get("suggestion")
        if not first or load.now_s < seen.setdefault(first, load.now_s) + world.think_s:
            continue
        made = await rig.suggestion(first)
        if made.get("status") == "open" and (await rig.approve(made))[0] == 200:  # noqa: PLR2004 - HTTP
            books.approved.setdefault(first, load.now_s)


def _read_journal(rig: Rig, began: datetime, books: Books) -> None:
    for record in rig.audit():
        state, at_s = parse_state(record), (datetime.fromisoformat(record["ts"]) - began).total_seconds()
        if state is not None:
            books.add_state(state, at_s)
            books.add_shares({name: weight for name, weight in state.split.weights.items() if weight}, at_s)
