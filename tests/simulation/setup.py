"""The rules of every history: short plans, the real judge, a policy that proposes more sequences."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from flettner.agent.domain.model import SERVERS, Bound, Evidence, Plan, Proposal, SavingLimits, Slo, Step
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.windows import Schedule, Windows
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.transitions import Rules
from flettner.agent.quality.golden_prompts import GoldenPromptOptions
from tests.simulation.clock import EPOCH
from tests.simulation.load import TwoSettings
from tests.simulation.scenario import Scenario
from tests.simulation.world import Boot

BOUND = Bound(min=1, max=64, octaves=2)
PLAN = Plan(
    steps=(
        Step(weight=20, requests=2, at_least_s=1, at_most_s=40),
        Step(weight=50, requests=6, at_least_s=3, at_most_s=60),
        Step(weight=100, requests=6, at_least_s=3, at_most_s=60),
    ),
    start_s=20,
    warm_up_requests=2,
    warm_up_s=10,
    drain_s=12,
    lease_s=6,
    margin=0.45,
    gain_needed=False,
)
OTHER = replace(
    PLAN, steps=(replace(PLAN.steps[0], weight=10), *PLAN.steps[1:]), warm_up_s=15, drain_s=14, lease_s=5
)
BLUE: dict[str, str | int] = {"model": "m", "max_num_seqs": 4}
OWNERS_CAP = 6  # max_num_seqs with which an owner starts a server
WANTED = 16
IDLE_S = 4  # of 20 s without a proposal
ENOUGH_RPS, TOO_FEW_RPS = 8.0, 5.0  # of a server: one is below its limit at the five of the world, or above


@dataclass(frozen=True, slots=True)
class MoreSeqs:
    """Proposes 16 while requests wait."""

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        if context.setting.get("max_num_seqs") == WANTED or not reading.waiting.low:
            return ()
        to = {"max_num_seqs": WANTED}
        return (Proposal(rule="Q1", to=to, why="6 wait", expects="less", risks="KV", source="simulation"),)


@dataclass(frozen=True, slots=True)
class Graphs:
    """Proposes CUDA graphs at times, beside the other policy; green is then no other server for the world."""

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        if context.setting.get("enforce_eager") is False or reading.at.second % 20 < IDLE_S:
            return ()
        to = {"enforce_eager": False}
        seen = (Evidence(metric="running", value=reading.at.second, unit="", window_s=reading.span_s),)
        return (
            Proposal(
                rule="G1", to=to, why="eager", expects="more", risks="few", source="simulation", evidence=seen
            ),
        )


@dataclass(frozen=True, slots=True)
class SmallerShare:
    """Proposes a smaller share of the card, as rule M7: not worse is enough, and a person approves it."""

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        del reading
        if context.setting.get("gpu_memory_utilization") is not None:
            return ()
        return (
            Proposal(
                rule="M7",
                to={"gpu_memory_utilization": 0.6},
                assumed={"gpu_memory_utilization": 0.9},
                why="little is used",
                expects="room for others",
                risks="a full cache",
                source="simulation",
                klass="gated",
                cheaper=True,
            ),
        )


@dataclass(frozen=True, slots=True)
class FewerServers:
    """Proposes once that half of the servers serve, which each carry that many requests a second."""

    server_rps: float

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        del reading
        if context.servers == 1 or any(SERVERS in outcome.to for outcome in context.outcomes):
            return ()
        proposal = Proposal(
            rule="N2",
            to={SERVERS: context.servers // 2},
            why="half are enough",
            expects="less cost",
            risks="late",
            source="simulation",
            klass="gated",
            saving=SavingLimits(peak_rps=2.0, server_rps=self.server_rps),
        )
        return (proposal,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedFor(Schedule):
    """Closed for some seconds, where a schedule of the config counts minutes."""

    begin: datetime
    end: datetime

    def is_open(self, at: datetime) -> bool:
        return not self.begin <= at < self.end

    def next_change(self, at: datetime, *, opens: bool, until: datetime) -> datetime | None:
        moment = self.end if opens else self.begin
        return moment if at < moment <= until else None


def windows_of(scenario: Scenario) -> Windows:
    if scenario.closed_s is None:
        return Windows()
    begin, end = (EPOCH + timedelta(seconds=moment_s) for moment_s in scenario.closed_s)
    return Windows(
        (
            ClosedFor(
                zone=ZoneInfo("UTC"),
                outside="refuse" if scenario.refuses else "wait",
                edge="roll_back" if scenario.rolls_back else "finish",
                begin=begin,
                end=end,
            ),
        )
    )


def rules_of(scenario: Scenario, *, other: bool = False) -> Rules:
    """`other`: as after a restart with another configuration."""
    exam = GoldenPromptOptions(prompts=("one", "two of them"), at_most_s=5.0, always=scenario.exam)
    guard = Guard(bounds={"max_num_seqs": BOUND}, cooldown_s=15, changes_per_day=2, refresh_s=5)
    if other:
        guard = replace(guard, bounds={"max_num_seqs": replace(BOUND, max=24)}, cooldown_s=10)
    plan = OTHER if other else PLAN
    others = Graphs() if scenario.seed % 2 else SmallerShare()
    second = (("second", others),) if scenario.several else ()
    switch = TwoSettings(BLUE["max_num_seqs"], WANTED, cold=scenario.strategy != "hot")
    policies = (("first", switch if scenario.switches else MoreSeqs()), *second)
    if scenario.strategy == "hot":
        plan = replace(plan, steps=tuple(replace(step, at_most_s=150) for step in plan.steps))
        return Rules(
            plan=plan,
            judge=AnytimeJudge(),
            guard=guard,
            policies=policies[:1],
            strategy="hot",
            windows=windows_of(scenario),
        )
    if scenario.strategy == "save":
        enough = TOO_FEW_RPS if scenario.seed % 4 == 2 else ENOUGH_RPS
        return Rules(
            plan=plan,
            judge=AnytimeJudge(),
            slo=Slo(errors=0.7),
            guard=guard,
            policies=(("fewer", FewerServers(enough)),),
            windows=windows_of(scenario),
        )
    return Rules(
        plan=plan,
        judge=AnytimeJudge(),
        guard=guard,
        policies=policies,
        exam=exam,
        windows=windows_of(scenario),
    )


def boots(scenario: Scenario) -> tuple[Boot, Boot]:
    """The behaviour of servers with the old and the candidate setting."""
    turns = {"exits": "exited", "hangs": "hung", "wedges": "wedged"}
    if scenario.green in turns:
        return Boot(), Boot(becomes=turns[scenario.green], turns_s=12.0)
    errors = 0.9 if scenario.green == "failing" else 0.0
    nonsense = scenario.green == "wrong answers"
    return Boot(), Boot(fails=scenario.green == "fails to start", errors=errors, nonsense=nonsense)


def is_new(cap: object) -> bool:
    """Flags with which an owner has started a server do so again, as the old ones do."""
    return cap not in {BLUE["max_num_seqs"], OWNERS_CAP}
