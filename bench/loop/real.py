"""One run of a world in real time: daemon, Envoy and servers as processes, over public interfaces only."""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from time import process_time

import aiohttp

from bench.loop.clients import Clients
from bench.loop.config import config_text
from bench.loop.run import Rolled, Run, Said
from bench.loop.static import LATE_S
from bench.loop.world import MODEL, World
from flettner.agent.domain.reading import RequestOutcome
from flettner.simulator.answer import CompletionWriter
from flettner.simulator.scheduler import SimulatedRequest
from flettner.simulator.text import draws
from flettner.simulator.workload import prose
from flettner.vllm_facts.values import Setting
from tests.support.config_builder import SERVERS, TARGET, SiteConfig
from tests.support.rig import Document, Rig, at_rest, until
from tests.support.virtual_server import PATIENCE_S, Ended

LOOK_S = 1.0
SETTLED_S = 2.0  # from the first server to the begin of the load
START_S = 120.0  # beyond the simulated start
OUTCOMES: Mapping[str, RequestOutcome] = {"ok": "ok", "truncated": "truncated", "aborted": "aborted"}


@dataclass(frozen=True, kw_only=True)
class WorldSite(SiteConfig):
    """The config of an operator who gives engine, traffic and SLO, and leaves the rest to the defaults."""

    world: World

    def text(self, *, api: int, listen: int) -> str:
        ports = f"ports = [{SERVERS[0]}, {SERVERS[-1]}]"
        told = config_text(
            self.world, TARGET, python=sys.executable, listen=f"127.0.0.1:{listen}", engine=ports
        )
        return f"""{told}
            [api]
            listen = "127.0.0.1:{api}"
            tokens_file = "tokens"
        """


@dataclass(slots=True, kw_only=True)
class _Real:
    """What is known of the site; times in seconds since the begin of the load."""

    world: World
    rig: Rig
    began_s: float = 0.0  # of the loop's clock
    said: dict[str, Said] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)  # when a suggestion was first open
    rolling: dict[str, list[float | None]] = field(default_factory=dict)  # seen, shared, ended
    results: dict[str, str] = field(default_factory=dict)
    forecasts: dict[str, tuple[float, float]] = field(default_factory=dict)  # by suggestion
    rollouts: list[Document] = field(default_factory=list)  # newest first
    settings: dict[str, Setting] = field(default_factory=dict)
    shares: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    sent: int = 0

    @property
    def now_s(self) -> float:
        return round(asyncio.get_running_loop().time() - self.began_s, 1)

    async def look(self) -> None:
        """Take what the API says now, and decide as the operator does."""
        target = await self.rig.target()
        if not target:
            return
        self._add_target(target)
        blue = next((dict(one["setting"]) for one in target["servers"] if one["color"] == "blue"), {})
        _, listed = await self.rig.ask("GET", "/v1/suggestions")
        for one in listed.get("suggestions", ()):
            self._add_suggestion(one, blue)
        _, listed = await self.rig.ask("GET", "/v1/rollouts")
        self.rollouts = listed.get("rollouts", self.rollouts)
        for one in self.rollouts:
            self._add_rollout(one, target)
        if self.world.mode == "approve" and target["suggestion"]:
            await self._decide(target["suggestion"])

    async def _decide(self, suggestion: str) -> None:
        """Approve the first open suggestion, as it is then, `think_s` after it was seen."""
        if self.now_s < self.seen.setdefault(suggestion, self.now_s) + self.world.think_s:
            return
        made = await self.rig.suggestion(suggestion)
        if made.get("status") == "open" and (await self.rig.approve(made))[0] == 200:  # noqa: PLR2004
            self.said[suggestion] = replace(self.said[suggestion], approved_s=self.now_s)

    def _add_target(self, target: Document) -> None:
        servers = target["servers"]
        for one in servers:
            self.settings[one["name"]] = dict(one["setting"])
        weights = {one["name"]: one["weight"] for one in servers if one["weight"]}
        if not self.shares or self.shares[-1][1] != weights:
            self.shares.append((self.now_s, weights))
        note = f"{target['phase']}: {target['note']}"
        if not self.notes or self.notes[-1][1] != note:
            self.notes.append((self.now_s, note))

    def _add_suggestion(self, one: Document, blue: Setting) -> None:
        if one["status"] == "checking":
            return
        known = self.said.get(one["id"])
        if forecast := one["forecast"]:
            hold_s = forecast["hold_s"]
            self.forecasts[one["id"]] = forecast["usual_s"] + hold_s, forecast["likely_s"] + hold_s
        self.said[one["id"]] = Said(
            id=one["id"],
            rule=one["rule"],
            klass=one["class"],
            at_s=known.at_s if known else self.now_s,
            before=one["from"],
            to=one["to"],
            in_force=known.in_force if known else blue,
            why=one["why"],
            approved_s=known.approved_s if known else None,
            status=one["status"],
        )

    def _add_rollout(self, one: Document, target: Document) -> None:
        times = self.rolling.setdefault(one["id"], [self.now_s, None, None])
        green = [server["weight"] for server in target["servers"] if server["color"] == "green"]
        if one["ended_at"] is None and times[1] is None and any(green):
            times[1] = self.now_s
        if one["ended_at"] is not None and times[2] is None:
            times[2] = self.now_s
            since = datetime.fromisoformat(one["started_at"])
            later = [o for o in target["outcomes"] if datetime.fromisoformat(o["at"]) >= since]
            self.results[one["id"]] = later[0]["result"] if later else one["outcome"]

    async def send(self, session: aiohttp.ClientSession, request: SimulatedRequest) -> None:
        """Send one request and keep what its client saw."""
        clock = asyncio.get_running_loop().time
        answer = CompletionWriter(at=clock())
        outcome: RequestOutcome
        body = {
            "model": MODEL,
            "prompt": self._prompt(request),
            "max_tokens": request.wanted,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with session.post(f"{self.rig.url}/v1/completions", json=body) as response:
                async for line in response.content:
                    answer.take(line, clock())
                seen, _ = answer.verdict() if response.status == 200 else answer.cut("")  # noqa: PLR2004
            outcome = OUTCOMES.get(seen, "failed")
        except TimeoutError:
            outcome = "gave_up"
        except (aiohttp.ClientError, ConnectionError, ValueError):
            outcome = OUTCOMES.get(answer.cut("")[0], "failed")
        self.ended.append(
            Ended(
                server="",
                arrived_s=answer.at - self.began_s,
                ended_s=self.now_s,
                outcome=outcome,
                ttft_s=answer.ttft_s,
                gap_s=answer.itl_s,
            )
        )

    def _prompt(self, request: SimulatedRequest) -> str:
        shared = self.world.shared_prefix
        own = prose(draws(0, request.name), request.prompt - shared)
        return prose(draws(0, "shared"), shared) + f"{request.name:>8}"[:8] + own[8:]


def play(world: World, seed: int) -> Run:
    """Run the world once; what the clients send is that of the seed, the rest is real."""
    with tempfile.TemporaryDirectory(prefix="loop-") as home:
        return asyncio.run(_play(world, seed, Path(home)))


async def _play(world: World, seed: int, home: Path) -> Run:
    rig = Rig(home=home, site_config=WorldSite(world=world))
    real = _Real(world=world, rig=rig)
    try:
        rig.prepare()
        await rig.start()
        await until(rig.target, at_rest, "the first server", START_S + world.start_s)
        await asyncio.sleep(SETTLED_S)
        real.began_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(_look(real))
            await _drive(real, seed)
            looking.cancel()
    finally:
        await rig.tear_down()
    return _told(real, seed)


async def _look(real: _Real) -> None:
    while True:
        await real.look()
        await asyncio.sleep(LOOK_S)


async def _drive(real: _Real, seed: int) -> None:
    """Send every request when it is due; wait for the last answers."""
    world, clients, waiting = real.world, Clients(real.world, seed), set[asyncio.Task[None]]()
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        for coming in clients.until(world.seconds):
            await asyncio.sleep(max(0.0, coming.request.arrived_at - real.now_s))
            real.sent += 1
            task = asyncio.create_task(real.send(session, coming.request))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.sleep(max(0.0, world.seconds - real.now_s))
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=LATE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _told(real: _Real, seed: int) -> Run:
    rolled = []
    for one in reversed(real.rollouts):
        began_s, shared_s, ended_s = real.rolling[one["id"]]
        said = real.said.get(one["suggestion"])
        rolled.append(
            Rolled(
                id=one["id"],
                suggestion=one["suggestion"],
                to=said.to if said else {},
                began_s=began_s or 0.0,
                ended_s=ended_s,
                outcome=real.results.get(one["id"], "running"),
                why=one["why"],
                exposed=one["exposed"]["asked"],
                bad=one["bad_exposed"],
                forecast_s=real.forecasts.get(one["suggestion"]),
                canary_s=None if shared_s is None or ended_s is None else ended_s - shared_s,
            )
        )
    return Run(
        world=real.world.name,
        seed=seed,
        said=tuple(real.said.values()),
        rolled=tuple(rolled),
        shares=tuple(real.shares),
        settings=real.settings,
        ended=tuple(real.ended),
        sent=real.sent,
        notes=tuple(real.notes),
        cpu_s=round(process_time(), 1),
    )
