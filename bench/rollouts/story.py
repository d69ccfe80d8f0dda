"""One rollout from the request to its end, with the production loop, machine, judge and journal."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Literal

from bench.rollouts.cases import SERVICES, Green, Profile, Service
from bench.rollouts.clients import Clients
from bench.rollouts.world import BLUE, World
from flettner.agent.config.convert import BOUNDS, plan
from flettner.agent.config.tables import RolloutTable
from flettner.agent.domain import events as e
from flettner.agent.domain.model import Forecast, Plan, Proposal, Server
from flettner.agent.domain.ports import Context, Site
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, RecentTraffic, State
from flettner.agent.domain.upgrade import UpgradeLimits
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.transitions import Rules
from flettner.simulator.text import draws
from flettner.vllm_facts.values import Setting
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_no_time, loop_now
from tests.support.running_loop import RunningLoop, start_loop

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
    service: Service | None = None  # None: that of the rate
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
class ProposeOnce:
    """A policy that proposes one change while it is `on`."""

    to: Setting
    mitigation: bool
    on: bool = False

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        del reading, context
        proposal = Proposal(
            rule="B1", to=self.to, why="bench", expects="", risks="", source="", mitigation=self.mitigation
        )
        return (proposal,) if self.on else ()


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a rollout. Times in seconds."""

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
    outcome: Outcome
    policy: ProposeOnce
    before: State  # of an earlier daemon
    began_s: float | None = None  # start of the canary
    ended_s: float | None = None  # time of the verdict
    _epoch: int = 0
    _daemon: RunningLoop | None = None

    @property
    def state(self) -> State:
        return self._daemon.loop.state if self._daemon is not None else self.before

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def start(self) -> None:
        """Start the daemon; a second start reads the journal of the first."""
        self._epoch += 1
        rules = Rules(
            plan=self.case.plan,
            judge=AnytimeJudge(),
            slo=self.case.conditions.slo,
            guard=Guard(bounds=BOUNDS, upgrades=UpgradeLimits(images=("*/*",))),
            policies=(("bench", self.policy),),
        )
        self._daemon = start_loop(
            rules,
            home=self.home,
            engine=self.engine,
            traffic=self.traffic,
            recorded=self.before,
            epoch=self._epoch,
            sensors=(self.world,),
            on_state=self._note_state,
        )

    async def stop(self) -> None:
        """Stop without cleanup, as a kill does; only the journal remains."""
        assert self._daemon is not None
        await self._daemon.stop()

    async def until(self, holds: Callable[[State], object], limit_s: float | None = None) -> State:
        """Wait for the condition. Raises TimeoutError with the current state."""
        assert self._daemon is not None
        end_s = self.now_s + (self.case.limit_s if limit_s is None else limit_s)
        while not holds(self.state):
            self._daemon.check()
            if self.now_s > end_s:
                raise TimeoutError(f"{self.state.phase}: {self.state.note}")
            await asyncio.sleep(1.0)
        return self.state

    async def begin(self) -> None:
        """Request and approve the change; return at the first share of green, or at the end."""
        assert self._daemon is not None
        loop = self._daemon.loop
        await asyncio.sleep(self.case.load_s)
        if self.case.asks == "person":
            await loop.submit(
                e.ChangeAsked(at=loop_now(), actor="alice", to=self.case.green.to, reason="a wish")
            )
        self.policy.on = True
        state = await self.until(lambda state: state.phase is Phase.PROPOSED, 300.0)
        self.policy.on = False
        suggestion = state.suggestions.open[0]
        self.outcome.forecast = suggestion.forecast
        await asyncio.sleep(self.case.think_s)
        self.engine.takes_s = self.case.start_s
        self.outcome.approved_s = self.now_s
        await loop.submit(
            e.Approved(at=loop_now(), actor="alice", suggestion=suggestion.id, digest=suggestion.digest)
        )
        await self.until(lambda state: is_over(state) or self.began_s is not None, 600.0)
        self.engine.takes_s = 1.0

    async def at_weight(self, weight: int) -> None:
        """Wait until green has this share, or the rollout ends."""
        await self.until(lambda state: is_over(state) or weight in self.outcome.steps_s)

    async def end(self) -> Outcome:
        """Wait for the end of the rollout, and for the open requests of green."""
        outcome, state = self.outcome, await self.until(is_over)
        await asyncio.sleep(LATE_S)
        rollout = self.state.canary
        green = self.world.servers.get(rollout.server)
        outcome.result, outcome.why = state.outcomes[-1].result, rollout.why
        outcome.exposed, outcome.bad_exposed = rollout.exposed.asked, rollout.bad_exposed
        if green is not None and green.harmed_s is not None:
            began_s = self.world.at_s + (self.began_s or 0.0) - self.now_s  # of the world's clock
            outcome.onset_s = round(green.harmed_s - began_s, 1)
        outcome.story_s = self.now_s
        return outcome

    def _note_state(self, state: State) -> None:
        """Observe each recorded state."""
        rollout = state.rollout
        if not isinstance(rollout, Canary):
            return
        if state.phase is Phase.CANARY and rollout.step_since is not None:
            self._note_step(rollout.plan.steps[rollout.step].weight, rollout.server)
        if self.ended_s is None and state.phase in {Phase.ROLLING_BACK, Phase.PROMOTING}:
            self.ended_s = self.now_s
            self.outcome.verdict_s = round(self.now_s - (self.began_s or self.now_s), 1)
            self.outcome.weight = rollout.plan.steps[rollout.step].weight

    def _note_step(self, weight: int, green: str) -> None:
        if self.began_s is None:
            self.began_s = self.now_s
            from_s, until_s = self.case.profile.incident_s
            self.world.incident_s = (self.world.at_s + from_s, self.world.at_s + until_s)
        if weight >= 95 and self.outcome.all_s is None:  # noqa: PLR2004 - percent
            self.outcome.all_s = round(self.now_s - self.outcome.approved_s, 1)
        if weight in self.outcome.steps_s:
            return
        self.outcome.steps_s[weight] = round(self.now_s - self.began_s, 1)
        turns_s = self.case.green.turns_in_hold_s
        if weight == 100 and turns_s is not None:  # noqa: PLR2004 - percent
            server = self.world.find_server(green)
            since_s = self.world.at_s - (server.used_s or self.world.at_s)
            server.faults = replace(server.faults, slow_after=since_s + turns_s)

    async def watch(self) -> None:
        """Count held seconds, and record when blue has all traffic again."""
        was_parked = False
        while True:
            await asyncio.sleep(1.0)
            rollout = self.state.rollout
            if not isinstance(rollout, Canary) or self.began_s is None:
                continue
            self.outcome.held_s += rollout.evidence.held_s > 0 and self.ended_s is None
            self.outcome.parked += bool(rollout.parked) and not was_parked
            was_parked = bool(rollout.parked)
            is_back = self.world.traffic.weights_in_force == {BLUE: 100}
            if self.ended_s is not None and self.outcome.back_s is None and is_back:
                self.outcome.back_s = round(self.now_s - self.ended_s, 1)


def is_over(state: State) -> bool:
    return state.rollout is not None and state.rollout.ended_at is not None and state.phase in RESTING


@asynccontextmanager
async def running(case: Case, home: Path) -> AsyncIterator[Story]:
    """Yield a world with clients, and a daemon that has observed its servers."""
    began_s = perf_counter()
    blue = Server(name=BLUE, setting={"model": "m", "max_num_seqs": 64}, address="127.0.0.1:8000")
    engine, traffic = FakeEngine(blue), FakeTraffic()
    if case.green.faults.wrong:
        engine.wrong_answers = {GREEN: "something else altogether"}
    random = draws(case.seed, "clients", case.rate)
    world = World(
        seed=case.seed,
        service=case.conditions,
        profile=case.profile,
        green=case.green,
        clients=Clients(rate=case.rate, random=random, drift=case.profile.drift),
        engine=engine,
        traffic=traffic.bind(Site(target=TARGET, state_dir=home, epoch=0)),
    )
    calibration = world.calibrate(case.history_s, loop_now())
    outcome = Outcome(
        green=case.green.name,
        profile=case.profile.name,
        rate=case.rate,
        seed=case.seed,
        phi={name: stream.phi for name, stream in calibration.items()},
    )
    story = Story(
        case=case,
        home=home,
        world=world,
        engine=engine,
        traffic=traffic,
        outcome=outcome,
        policy=ProposeOnce(case.green.to, case.asks == "mitigation"),
        before=State(target=TARGET, traffic=RecentTraffic(calibration=calibration)),
    )
    story.start()
    tasks = [asyncio.create_task(world.live(loop_now)), asyncio.create_task(story.watch())]
    try:
        yield story
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await story.stop()
        outcome.launches = sum(call == "launch" for call, _ in engine.calls) - 1
        outcome.wall_s = round(perf_counter() - began_s, 1)


def play(case: Case, home: Path) -> Outcome:
    """Run a full rollout without intervention, in virtual time."""

    async def run() -> Outcome:
        async with running(case, home) as story:
            await story.begin()
            return await story.end()

    return in_no_time(run())
