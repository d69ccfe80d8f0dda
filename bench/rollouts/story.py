"""One rollout from the request to its end, with the production loop, machine, judge and journal."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Literal

from bench.rollouts.cases import SERVICES, Green, Profile, Service
from bench.rollouts.clients import Clients
from bench.rollouts.world import BLUE, World
from flettner.agent.audit.journal import Journal
from flettner.agent.config.convert import BOUNDS, plan
from flettner.agent.config.tables import RolloutTable
from flettner.agent.domain import events as e
from flettner.agent.domain.model import Forecast, Plan, Proposal, Server
from flettner.agent.domain.ports import Context, Site
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import Phase, State
from flettner.agent.judge.verdict import AnytimeJudge
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.transitions import Rules
from flettner.agent.runtime.loop import TargetLoop
from flettner.agent.runtime.wiring import build_loop
from flettner.simulator.text import draws
from flettner.vllm_facts.values import Setting
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_no_time, loop_now

TARGET, GREEN = "chat", "chat-r1"
LATE_S = 20.0  # after the end, to record open requests of green
DEFAULT = plan(RolloutTable())
RESTING = {Phase.OBSERVING, Phase.COOLDOWN, Phase.PROPOSED, Phase.HALTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`history_s`: observation of blue before. `start_s`: start of green, and the same time for its warm-up;
    the baseline is measured then."""

    seed: int
    rate: float
    profile: Profile
    green: Green
    service: Service | None = None  # None: the one of the rate
    asks: Literal["person", "policy", "mitigation"] = "person"  # a policy's change needs a gain
    load_s: float = 5.0  # before the suggestion
    think_s: float = 0.0  # before the approval
    plan: Plan = DEFAULT
    history_s: int = 3600
    start_s: float = 90.0
    limit_s: float = 6 * 3600.0

    @property
    def conditions(self) -> Service:
        return self.service or SERVICES[self.rate]


@dataclass(slots=True)
class Suggests:
    """A policy that proposes one change once it is told to."""

    to: Setting
    mitigation: bool
    now: bool = False

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        del reading, context
        if not self.now:
            return ()
        what = Proposal(
            rule="B1", to=self.to, why="bench", expects="", risks="", source="", mitigation=self.mitigation
        )
        return (what,)


@dataclass(slots=True, kw_only=True)
class Told:
    """Result of a rollout. Times in seconds."""

    green: str
    profile: str
    rate: float
    seed: int
    phi: dict[str, float] = field(default_factory=dict)
    forecast: Forecast | None = None
    approved_s: float = 0.0
    all_s: float | None = None  # from the approval until green has 95 % of the traffic
    result: str = "none"  # as recorded by the machine: promoted, rolled_back, undecided, no_gain, failed
    why: str = ""
    weight: int = 0  # share of green at the verdict
    steps_s: dict[int, float] = field(default_factory=dict)  # start of the step, by weight
    verdict_s: float | None = None  # from the start of the canary
    onset_s: float | None = None  # first request affected by the fault
    back_s: float | None = None  # from the verdict until blue has all traffic
    launches: int = 0  # after the start of the canary
    exposed: int = 0
    bad_exposed: int = 0
    held_s: int = 0
    parked: int = 0  # times
    story_s: float = 0.0
    wall_s: float = 0.0

    @property
    def after_onset_s(self) -> float | None:
        if self.verdict_s is None or self.onset_s is None:
            return None
        return round(self.verdict_s - self.onset_s, 1)


@dataclass(slots=True, kw_only=True)
class Story:
    case: Case
    home: Path
    world: World
    engine: FakeEngine
    traffic: FakeTraffic
    told: Told
    loop: TargetLoop | None = None
    began_s: float | None = None  # start of the canary
    ended_s: float | None = None  # time of the verdict
    policy: Suggests
    _epoch: int = 0
    before: State = field(default_factory=lambda: State(target=TARGET))  # state of an earlier daemon
    _daemon: asyncio.Task[None] | None = None
    _journal: Journal | None = None

    @property
    def state(self) -> State:
        return self.loop.state if self.loop is not None else self.before

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Start the daemon; a second start reads the journal of the first."""
        self._epoch += 1
        journal = Journal.open(self.home / "audit.jsonl", now=loop_now)
        site = Site(target=TARGET, state_dir=self.home, epoch=self._epoch)
        rules = Rules(
            plan=self.case.plan,
            judge=AnytimeJudge(),
            slo=self.case.conditions.slo,
            guard=Guard(bounds=BOUNDS),
            policies=(("bench", self.policy),),
        )
        self.loop = build_loop(
            rules,
            journal.states().get(TARGET, self.before),
            mode="approve",
            journal=journal,
            engine=self.engine.bind(site),
            traffic=self.traffic.bind(site),
            sensors=(self.world,),
            state_dir=self.home,
            now=loop_now,
            on_state=self._heard,
        )
        self._journal = journal
        self._daemon = asyncio.create_task(self.loop.run(self._epoch, lambda: None))

    async def stop(self) -> None:
        """Stop without cleanup, as a kill does; only the journal remains."""
        assert self._daemon is not None and self._journal is not None  # noqa: PT018 - one fact
        self._daemon.cancel()
        with suppress(asyncio.CancelledError):
            await self._daemon
        self._journal.close()

    async def until(self, holds: Callable[[State], object], limit_s: float | None = None) -> State:
        """Wait for the condition. Raises TimeoutError with the current state."""
        end_s = self.now_s + (self.case.limit_s if limit_s is None else limit_s)
        while not holds(self.state):
            if self._daemon is not None and self._daemon.done() and not self._daemon.cancelled():
                self._daemon.result()
            if self.now_s > end_s:
                raise TimeoutError(f"{self.state.phase}: {self.state.note}")
            await asyncio.sleep(1.0)
        return self.state

    async def begin(self) -> None:
        """Request and approve the change; return at the first share of green, or at the end."""
        assert self.loop is not None
        await asyncio.sleep(self.case.load_s)
        if self.case.asks == "person":
            await self.loop.submit(
                e.ChangeAsked(at=loop_now(), actor="alice", to=self.case.green.to, reason="a wish")
            )
        self.policy.now = True
        state = await self.until(lambda state: state.phase is Phase.PROPOSED, 300.0)
        self.policy.now = False
        assert state.suggestion is not None
        self.told.forecast = state.suggestion.forecast
        await asyncio.sleep(self.case.think_s)
        self.engine.takes_s = self.case.start_s
        self.told.approved_s = self.now_s
        await self.loop.submit(
            e.Approved(
                at=loop_now(), actor="alice", suggestion=state.suggestion.id, digest=state.suggestion.digest
            )
        )
        await self.until(lambda state: over(state) or self.began_s is not None, 600.0)
        self.engine.takes_s = 1.0

    async def at_weight(self, weight: int) -> None:
        """Wait until green has this share, or the rollout ends."""
        await self.until(lambda state: over(state) or weight in self.told.steps_s)

    async def end(self) -> Told:
        """Wait for the end of the rollout, and for the open requests of green."""
        state = await self.until(over)
        await asyncio.sleep(LATE_S)
        rollout = self.state.rollout
        assert rollout is not None
        green = self.world.servers.get(rollout.server)
        self.told.result = state.outcomes[-1].result
        self.told.why = rollout.why
        self.told.exposed, self.told.bad_exposed = rollout.exposed.asked, rollout.bad_exposed
        if green is not None and green.harmed_s is not None:
            self.told.onset_s = round(green.harmed_s - self._world_s(self.began_s or 0.0), 1)
        self.told.story_s = self.now_s
        return self.told

    def _world_s(self, at_s: float) -> float:
        return self.world.at_s + at_s - self.now_s

    def _heard(self, state: State) -> None:
        """Observe each recorded state."""
        rollout = state.rollout
        if rollout is None:
            return
        if state.phase is Phase.CANARY and rollout.step_since is not None:
            self._step_began(rollout.plan.steps[rollout.step].weight, rollout.server)
        if self.ended_s is None and state.phase in {Phase.ROLLING_BACK, Phase.PROMOTING}:
            self.ended_s = self.now_s
            self.told.verdict_s = round(self.now_s - (self.began_s or self.now_s), 1)
            self.told.weight = rollout.plan.steps[rollout.step].weight

    def _step_began(self, weight: int, green: str) -> None:
        if self.began_s is None:
            self.began_s = self.now_s
            from_s, until_s = self.case.profile.incident_s
            self.world.incident_s = (self.world.at_s + from_s, self.world.at_s + until_s)
        if weight >= 95 and self.told.all_s is None:  # noqa: PLR2004 - percent
            self.told.all_s = round(self.now_s - self.told.approved_s, 1)
        if weight in self.told.steps_s:
            return
        self.told.steps_s[weight] = round(self.now_s - self.began_s, 1)
        turns_s = self.case.green.turns_in_hold_s
        if weight == 100 and turns_s is not None:  # noqa: PLR2004 - percent
            server = self.world.server(green)
            since_s = self.world.at_s - (server.used_s or self.world.at_s)
            server.faults = replace(server.faults, slow_after=since_s + turns_s)

    async def watch(self) -> None:
        """Count held seconds, and record when blue has all traffic again."""
        parked = False
        while True:
            await asyncio.sleep(1.0)
            rollout = self.state.rollout
            if rollout is None or self.began_s is None:
                continue
            self.told.held_s += rollout.trial.held_s > 0 and self.ended_s is None
            self.told.parked += bool(rollout.parked) and not parked
            parked = bool(rollout.parked)
            back = self.world.traffic.weights_in_force == {BLUE: 100}
            if self.ended_s is not None and self.told.back_s is None and back:
                self.told.back_s = round(self.now_s - self.ended_s, 1)


def over(state: State) -> bool:
    return state.rollout is not None and state.rollout.ended_at is not None and state.phase in RESTING


@asynccontextmanager
async def telling(case: Case, home: Path) -> AsyncIterator[Story]:
    """Yield a world with clients, and a daemon that has observed its servers."""
    began_s = perf_counter()
    blue = Server(name=BLUE, setting={"model": "m", "max_num_seqs": 64}, address="127.0.0.1:8000")
    engine, traffic = FakeEngine(blue), FakeTraffic()
    if case.green.faults.wrong:
        engine.wrong_answers = {GREEN: "something else altogether"}
    world = World(
        seed=case.seed,
        service=case.conditions,
        profile=case.profile,
        green=case.green,
        clients=Clients(
            rate=case.rate, random=draws(case.seed, "clients", case.rate), drift=case.profile.drift
        ),
        engine=engine,
        traffic=traffic.bind(Site(target=TARGET, state_dir=home, epoch=0)),
    )
    told = Told(green=case.green.name, profile=case.profile.name, rate=case.rate, seed=case.seed)
    policy = Suggests(case.green.to, case.asks == "mitigation")
    story = Story(case=case, home=home, world=world, engine=engine, traffic=traffic, told=told, policy=policy)
    calibration = world.history(case.history_s, loop_now())
    told.phi = {name: one.phi for name, one in calibration.items()}
    story.before = State(target=TARGET, calibration=calibration)
    await story.start()
    tasks = [asyncio.create_task(world.live(loop_now)), asyncio.create_task(story.watch())]
    try:
        yield story
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await story.stop()
        told.launches = sum(what == "launch" for what, _ in engine.calls) - 1
        told.wall_s = round(perf_counter() - began_s, 1)


def tell(case: Case, home: Path) -> Told:
    """Run a full rollout without intervention, in virtual time."""

    async def plot() -> Told:
        async with telling(case, home) as story:
            await story.begin()
            return await story.end()

    return in_no_time(plot())
