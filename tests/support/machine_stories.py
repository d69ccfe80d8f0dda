"""The machine with simple rules, and a simulated world that performs its effects."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.answers import AnswerComparison
from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, GainNeeded, Observation
from flettner.agent.domain.headroom import Headroom
from flettner.agent.domain.model import (
    Bound,
    Mode,
    Plan,
    PreflightResult,
    Proposal,
    Server,
    Slo,
    Step,
    Strategy,
)
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import EngineLiveness, Reading, Request, Trend, Workload
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.verdict import Verdict
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.step import Machine
from flettner.agent.machine.transitions import Rules
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Setting

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
BLUE = Server(name="chat-r0", setting={"model": "m", "max_num_seqs": 4}, address="127.0.0.1:8000", ours=False)
PLAN = Plan(
    steps=(
        Step(weight=5, requests=5, at_least_s=2, at_most_s=60),
        Step(weight=50, requests=20, at_least_s=2, at_most_s=60),
        Step(weight=100, requests=20, at_least_s=4, at_most_s=60),
    ),
    start_s=600,
    warm_up_requests=4,
    warm_up_s=60,
    drain_s=30,
    lease_s=15,
)


@dataclass(frozen=True, slots=True)
class RaiseSeqs:
    """Proposes 16 while fewer are allowed."""

    to: int = 16

    def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
        if context.setting.get("max_num_seqs") == self.to or not reading.waiting.low:
            return ()
        return (
            Proposal(
                rule="Q1",
                to={"max_num_seqs": self.to},
                why="12 wait",
                expects="less",
                risks="KV",
                source="test",
            ),
        )


@dataclass(frozen=True, slots=True)
class CountingJudge:
    """Fails on the first bad request of green; passes when the step's counts and time are reached."""

    better: str = "better: quicker"

    def update(
        self,
        evidence: CanaryEvidence,
        *,
        step: Step,
        slo: Slo,
        observation: Observation,
        green: RequestCounts,
        blue: RequestCounts,
        baseline: RequestCounts,
    ) -> tuple[CanaryEvidence, Verdict]:
        del slo, blue, baseline
        if observation.blind:
            return replace(evidence, held_s=evidence.held_s + 1), Verdict(
                kind="inadmissible", why=observation.blind
            )
        evidence = replace(evidence, valid_s=evidence.valid_s + 1, held_s=0.0)
        if green.errors:
            return evidence, Verdict(kind="fail", why=f"{green.errors} of {green.total} requests failed")
        if green.total >= step.requests and evidence.valid_s >= step.at_least_s:
            return evidence, Verdict(kind="pass", why=f"{green.total} requests, none failed")
        return evidence, Verdict(kind="wait", why=f"{green.total} of {step.requests} requests")

    def forecast(
        self,
        plan: Plan,
        *,
        slo: Slo,
        recent: RequestCounts,
        rate_rps: float | None,
        calibration: Mapping[str, Calibration],
        gain_needed: GainNeeded = "never",
    ) -> None:
        del plan, slo, recent, rate_rps, calibration, gain_needed

    def gain(
        self,
        evidence: CanaryEvidence,
        *,
        slo: Slo,
        level: tuple[RequestCounts, RequestCounts],
        green: RequestCounts,
        baseline: RequestCounts,
    ) -> str:
        del evidence, slo, level, green, baseline
        return self.better


def rules(**changes: object) -> Rules:
    guard = Guard(
        bounds={"max_num_seqs": Bound(min=1, max=64, octaves=3)},
        cooldown_s=60,
    )
    plain = Rules(plan=PLAN, judge=CountingJudge(), guard=guard, policies=(("admission", RaiseSeqs()),))
    return replace(plain, **changes)  # type: ignore[arg-type]


def reading(at: datetime, *, waiting: float = 12, coverage: float = 1.0, running: float = 4) -> Reading:
    """A window of one second, so that two windows take two."""

    def flat(value: float) -> Trend:
        return Trend(mean=value, low=value, high=value, early=value, late=value)

    return Reading(
        at=at, server="chat-r0", span_s=1, coverage=coverage, running=flat(running), waiting=flat(waiting)
    )


def counts_of(server: str, *, ok: int = 0, failed: int = 0) -> RequestCounts:
    good = [Request(server=server, outcome="ok", status=200, duration_s=1.0, ttft_s=0.1, tokens=10)] * ok
    bad = [Request(server=server, outcome="failed", status=500, duration_s=0.1)] * failed
    return count_requests([*good, *bad])


def address_of(server: Server) -> str:
    number = int(server.name.rsplit("r", 1)[1]) if "r" in server.name else -int(server.name[-1])
    return f"127.0.0.1:{8100 + number}"


@dataclass
class World:
    """Perform effects as a healthy deployment does; `green_fails`: failed requests of green per second."""

    machine: Machine = field(default_factory=lambda: Machine(rules()))
    state: State = field(default_factory=lambda: State(target="chat"))
    mode: Mode = "approve"
    at: datetime = NOON
    epoch: int = 0
    running: dict[str, Server] = field(default_factory=lambda: {BLUE.name: BLUE})
    old: frozenset[str] = frozenset({BLUE.name})
    weights: dict[str, int] = field(default_factory=dict)
    performed: list[fx.Effect] = field(default_factory=list)
    pending: list[fx.Effect] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    green_fails: int = 0
    waiting: float = 12
    open_at: dict[str, float] = field(default_factory=dict)  # requests that run at a server; else six
    silent: bool = False  # no requests arrive
    blind: str = ""  # why requests cannot be counted
    how: str = ""  # what the engine says of each stop
    refuses: set[str] = field(default_factory=set)  # kinds of effects that fail
    preflight: PreflightResult = field(default_factory=PreflightResult)
    wrong: bool = False  # green answers golden prompts wrongly
    stopped: dict[str, Server] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)  # answer nothing
    paused: set[str] = field(default_factory=set)  # the same, and their engine says that a third party did it
    lacks: dict[str, frozenset[str]] = field(default_factory=dict)  # metrics, by server
    wedged: set[str] = field(default_factory=set)  # answer scrapes, and compute no token
    findings: tuple[Finding, ...] = ()  # of lint, on the flags
    ahead: dict[str, str] = field(default_factory=dict)  # what became of other targets' suggestions
    erring: set[str] = field(default_factory=set)  # half of their requests fail
    headroom: Headroom | None = None
    prompt_tokens: float | None = None  # of a request, mean
    moved: str = ""  # the server that takes the place of an adopted one

    @classmethod
    def servers(
        cls,
        count: int,
        strategy: Strategy,
        *,
        ours: bool = False,
        replicas: int = 1,
        **more: Any,  # noqa: ANN401
    ) -> "World":
        """Return a world with `count` servers of one setting whose preflight chooses `strategy`."""
        fleet = [
            replace(BLUE, name=f"vllm{n}", address=f"127.0.0.1:{8000 + n}", ours=ours, replicas=replicas)
            for n in range(count)
        ]
        preflight = PreflightResult(strategy=strategy, outage_s=40.0 if strategy == "swap" else 0.0)
        running = {server.name: server for server in fleet}
        return cls(running=running, old=frozenset(running), preflight=preflight, **more)

    def snapshot(self) -> Self:
        """Return an independent copy; values in its containers are immutable."""
        taken = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, list, set)):
                setattr(taken, name, value.copy())
        return taken

    def feed(self, *events: e.Event) -> "World":
        for event in events:
            before = self.state
            self.state, effects = self.machine.step(self.state, event)
            if self.state != before or effects:
                self.states.append(self.state)
            self.pending.extend(effects)
        return self

    def start(self) -> "World":
        self.epoch += 1
        self.pending = []
        return self.feed(
            e.AgentStarted(
                at=self.at,
                epoch=self.epoch,
                mode=self.mode,
                servers=tuple(self.running.values()),
                weights=dict(self.weights) or None,
            )
        )

    def tick(self, seconds: int = 1) -> "World":
        """Perform pending effects, then advance the clock by one second."""
        for _ in range(seconds):
            pending, self.pending = self.pending, []
            for effect in pending:
                self.feed(*self.perform(effect))
            self.at += timedelta(seconds=1)
            arms = {
                name: self.arm(name) for name, weight in self.weights.items() if weight and not self.silent
            }
            work = Workload(prompt_tokens=self.prompt_tokens)
            now = replace(reading(self.at, waiting=self.waiting), work=work)
            engines = {name: self.liveness(name) for name in self.running}
            self.feed(
                e.Observed(
                    at=self.at,
                    reading=now,
                    arms=arms,
                    engines=engines,
                    blind=self.blind,
                    findings=self.findings,
                    ahead=self.ahead,
                    headroom=self.headroom,
                )
            )
        return self

    def arm(self, name: str) -> RequestCounts:
        """A second of ten requests; those of a server that hangs end when their clients give up."""
        if name in self.frozen | self.wedged | self.paused:
            return RequestCounts(gave_up=2)
        if name in self.erring:
            return counts_of(name, ok=5, failed=5)
        return counts_of(name, ok=10, failed=0 if name in self.old else self.green_fails)

    def liveness(self, name: str) -> EngineLiveness:
        if name in self.frozen | self.paused:
            liveness = EngineLiveness(age_s=9.0, running=2, waiting=0, tokens=40.0, lost=True)
            return replace(liveness, paused=name in self.paused)
        tokens, missing = 0.0 if name in self.wedged else 40.0, self.lacks.get(name, frozenset())
        return EngineLiveness(
            age_s=0.5, running=self.open_at.get(name, 6), waiting=0, tokens=tokens, missing=missing
        )

    def perform(self, effect: fx.Effect) -> Iterable[e.Event]:  # noqa: C901 - a table of effects
        self.performed.append(effect)
        if isinstance(effect, fx.KeepAlive):  # KeepAlive restores a lost split
            self.weights = self.weights if "route" in self.refuses else dict(effect.route.weights)
            return ()
        if isinstance(effect, fx.KeepKnobs):
            return ()
        if isinstance(effect, fx.KeepAdapters):
            return self.put_adapters(effect)
        if effect.kind in self.refuses:
            return (
                e.EffectFailed(at=self.at, number=effect.number, why=f"{effect.kind} refused", log=("last",)),
            )
        match effect:
            case fx.Preflight():
                return (e.Preflighted(at=self.at, number=effect.number, preflight=self.preflight),)
            case fx.Stop(server=server, keep=keep) if keep:
                self.running[server.name] = replace(self.running[server.name], replicas=keep)
                return (e.Stopped(at=self.at, number=effect.number),)
            case fx.Stop(server=server):
                if (up := self.running.pop(server.name, None)) is not None:
                    self.stopped[server.name] = up
                return (e.Stopped(at=self.at, number=effect.number, how=self.how),)
            case fx.Launch(server=server):
                again = self.running.get(server.name) or self.stopped.pop(server.name, None)
                up = replace(again or replace(server, address=address_of(server)), replicas=server.replicas)
                refused = tuple(
                    f"no {adapter.name}" for adapter in server.adapters if "adapters" in self.refuses
                )
                up = replace(up, adapters=() if refused else server.adapters)
                self.running[up.name] = up
                return (e.Launched(at=self.at, number=effect.number, server=up, refused=refused),)
            case fx.WarmUp():
                return (e.Warmed(at=self.at, number=effect.number),)
            case fx.Examine(green=green):
                if green is not None:
                    assert not self.weights.get(green.name), "examined before it has traffic"
                quality = AnswerComparison(ok=green is None or not self.wrong, why="as golden as ever")
                return (e.Examined(at=self.at, number=effect.number, quality=quality),)
            case fx.Route(weights=weights):
                self.weights = dict(weights)
                return (e.Routed(at=self.at, number=effect.number),)
            case fx.SetKnobs(number=number):
                return (e.KnobsSet(at=self.at, number=number),)
            case fx.Drain():
                return (e.Drained(at=self.at, number=effect.number, open=0),)
            case fx.Retire(server=server):
                self.running.pop(server.name, None)
                self.stopped.pop(server.name, None)
                moved = self.moved if not server.ours else ""
                return (e.Retired(at=self.at, number=effect.number, moved=moved),)

    def put_adapters(self, effect: fx.KeepAdapters) -> Iterable[e.Event]:
        if "adapters" in self.refuses or effect.server.name not in self.running:
            return ()
        adapters = {adapter.name: adapter for adapter in (*effect.server.adapters, *effect.load)}
        left = tuple(adapters[name] for name in sorted(adapters.keys() - {*effect.unload}))
        return (e.AdaptersRead(at=self.at, server=effect.server.name, adapters=left),)

    def replicas(self) -> dict[str, int]:
        return {name: server.replicas for name, server in self.running.items()}

    def approve(self, actor: str = "alice", made: Suggestion | None = None) -> "World":
        """Approve this suggestion, by default the first open one."""
        suggestion = made or self.state.suggestions.open[0]
        return self.feed(
            e.Approved(at=self.at, actor=actor, suggestion=suggestion.id, digest=suggestion.digest)
        )

    def until(self, phase: str, limit_s: int = 200) -> "World":
        for _ in range(limit_s):
            if self.state.phase.value == phase:
                return self
            self.tick()
        raise AssertionError(f"{phase} was not reached in {limit_s} s: {self.state.phase}, {self.state.note}")

    def ended(self, id_: str) -> Suggestion:
        """The suggestion as it ended."""
        ended = (suggestion for state in self.states for suggestion in state.suggestions.ended)
        return next(suggestion for suggestion in ended if suggestion.id == id_)

    def settings(self) -> dict[str, Setting]:
        return {name: dict(server.setting) for name, server in self.running.items()}
