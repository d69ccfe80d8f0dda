"""An in-memory daemon for tests of the API and the console."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from flettner.agent.audit.history import Accepted, Point
from flettner.agent.audit.offsets import SLICE_BYTES
from flettner.agent.config.changes import ReloadReport
from flettner.agent.domain.digest import digest
from flettner.agent.domain.errors import ActError, FlettnerError
from flettner.agent.domain.events import (
    Aborted,
    Approved,
    ChangeAsked,
    Denied,
    Event,
    Observed,
    Paused,
    Resumed,
)
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.headroom import Headroom
from flettner.agent.domain.model import (
    Evidence,
    Objective,
    Plan,
    PreflightResult,
    Proposal,
    Server,
    Slo,
    Step,
)
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.domain.reading import Latency, Reading, SourceState, Trend
from flettner.agent.domain.rollout import Canary, Rollout
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion, Suggestions
from flettner.agent.machine.guard import PERSON
from flettner.agent.machine.open_suggestions import end_suggestion, enter_fitting_phase
from flettner.agent.machine.step import Machine
from flettner.agent.notify.delivery import DeliveryCounts, NoticeDelivery
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.observe.spending import Spending
from flettner.agent.prediction.capacity import CapacityAnswer, CapacityRequest, predict_capacity
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.what_if import WhatIf, WhatIfRequest, predict_what_if
from flettner.agent.telemetry.self_metrics import SelfMetrics
from flettner.performance_model.errors import PredictionInputError
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Setting, Value
from tests.support.machine_stories import rules

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PLAN = Plan(
    steps=(Step(weight=50, requests=200, at_least_s=30, at_most_s=600),),
    start_s=600,
    warm_up_requests=20,
    warm_up_s=60,
    drain_s=60,
    lease_s=15,
)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95))


def steady(value: float) -> Trend:
    return Trend(mean=value, low=value, high=value, early=value, late=value)


@dataclass
class FakeTarget:
    """One target; a test sets what it answers."""

    daemon: "FakeDaemonView"
    state: State
    slo: Slo = SLO
    reading: Reading | None = None
    observed: Observed | None = None
    sources: Mapping[str, SourceState] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    model: LearnedModel | None = None
    spending: Spending = field(default_factory=Spending)
    headroom: Headroom | None = None
    search_result: ModelSearchResult | None = None
    minutes: Sequence[MinuteRow] = ()
    progress: str = ""
    self_metrics: SelfMetrics = field(default_factory=lambda: SelfMetrics(stepped_at=99.5))
    logs: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by server
    unreadable: str = ""  # why no log can be read

    async def submit(self, event: Event) -> State:
        await asyncio.sleep(0)
        return self.daemon.decide(self.state, event)

    async def log(self, server: Server) -> tuple[str, ...]:
        await asyncio.sleep(0)
        if self.unreadable:
            raise ActError(self.unreadable)
        return self.logs.get(server.name, ())

    async def predict_capacity(self) -> CapacityAnswer:
        await asyncio.sleep(0)
        self.daemon.fail_once()
        if self.model is None:
            raise PredictionInputError(f"nothing is learned of {self.state.target} yet")
        suggested = tuple((each.id, each.proposal.to) for each in self.state.suggestions.open)
        return predict_capacity(CapacityRequest(learned=self.model, slo=self.slo, suggested=suggested))

    async def predict(self, changes: Setting, rate: float, prompt: float) -> WhatIf:
        """By a known law, as if the target had recorded two requests a second."""
        await asyncio.sleep(0)
        self.daemon.fail_once()
        if self.model is None:
            raise PredictionInputError(f"nothing is learned of {self.state.target} yet")
        request = WhatIfRequest(learned=self.model, slo=self.slo, changes=changes, rate=rate, prompt=prompt)
        return predict_what_if(request)


@dataclass
class FakeDaemonView:
    """One target `chat` that serves with 64 sequences; `suggest` and `settle` do what a machine would."""

    target: str = "chat"
    bounds: Mapping[str, float] = field(default_factory=lambda: {"max_num_seqs": 512})
    next_error: FlettnerError | None = None  # raised once, by the next `submit`, `predict` or `records`
    is_ready: bool = True
    checks: bool = False  # what is asked for is checked until `answer` is called
    waits: dict[tuple[str, str], float] = field(default_factory=dict)  # by actor and target
    full: bool = False  # the journal
    at: datetime = NOON
    reloaded: ReloadReport = field(default_factory=ReloadReport)
    listed_receivers: Mapping[str, NoticeDelivery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        blue = Server(name="chat-r0", address="127.0.0.1:8101", setting={"max_num_seqs": 64})
        self._targets: dict[str, FakeTarget] = {}
        self._suggestions: dict[str, Suggestion] = {}
        self._rollouts: dict[str, tuple[str, Rollout]] = {}
        self._records: list[Mapping[str, object]] = []
        self.reloads: list[str] = []  # who asked for one
        self.attempts: list[Mapping[str, int]] = []  # failed authentications
        self.reads: list[int] = []  # how many records each read gave
        self._accepted: dict[str, Accepted] = {}
        self._followers: set[asyncio.Queue[Mapping[str, object]]] = set()
        self.set(State(target=self.target, mode="approve", fleet=Fleet(servers=(blue,))))
        up = SourceState(at=self.at, source="vllm_metrics chat-r0", available=True)
        lost = SourceState(at=self.at, source="nvidia_smi", available=False, why="no such command")
        self._targets[self.target].sources = {up.source: up, lost.source: lost}
        self._targets[self.target].reading = Reading(
            at=self.at,
            server="chat-r0",
            span_s=60,
            coverage=1.0,
            running=steady(12),
            waiting=steady(3),
            ttft=Latency(count=480, p50=0.1, p95=0.42, p99=0.9),
            goodput_rps=7.5,
        )

    @property
    def followers(self) -> int:
        return len(self._followers)

    def targets(self) -> Mapping[str, FakeTarget]:
        return self._targets

    def accepted(self, request: str) -> Accepted | None:
        """As after a restart right now."""
        return self._accepted.get(request)

    def suggestions(self) -> Sequence[Suggestion]:
        return list(reversed(self._suggestions.values()))

    def points(self, rollout: str) -> Sequence[Point]:
        del rollout
        return ()

    def rollouts(self) -> Sequence[tuple[str, Rollout]]:
        return list(reversed(self._rollouts.values()))

    def records(self, after: int, limit: int) -> Sequence[Mapping[str, object]]:
        self.fail_once()
        page, size = list[Mapping[str, object]](), 0
        for record in self._records[after : after + limit]:
            if size < SLICE_BYTES:
                page.append(record)
                size += len(json.dumps(record))
        self.reads.append(len(page))
        return page

    async def follow(self) -> AsyncIterator[Mapping[str, object]]:
        queue: asyncio.Queue[Mapping[str, object]] = asyncio.Queue()
        self._followers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._followers.discard(queue)

    def report_failed_auth(self, attempts: Mapping[str, int]) -> None:
        self.fail_once()
        self.attempts.append(attempts)

    def wait_s(self, actor: str, target: str) -> float:
        return self.waits.get((actor, target), 0.0)

    async def reload(self, actor: str) -> ReloadReport:
        self.fail_once()
        self.reloads.append(actor)
        return self.reloaded

    def ready(self) -> bool:
        return self.is_ready

    def now(self) -> datetime:
        return self.at

    def counters(self) -> Mapping[str, float]:
        audit = {"audit_bytes": 5e6, "audit_keep_bytes": 8e9, "audit_full": self.full, "audit_writable": 1}
        audit["config_last_reload_successful"] = 1
        return {"audit_head_seq": len(self._records), "audit_anchor_seq": 1, "events_total": 7, **audit}

    def clock(self) -> float:
        return 100.0

    def delivery_counts(self) -> Mapping[str, DeliveryCounts]:
        return {"ops": DeliveryCounts(sent=3, failed=1)}

    def receivers(self) -> Mapping[str, NoticeDelivery]:
        return self.listed_receivers

    def decide(self, before: State, event: Event) -> State:
        self.fail_once()
        state = self._after(before, event)
        self.set(state)
        name, _, body = getattr(event, "request", "").partition(":")
        if name:
            self._accepted[name] = Accepted(asked=body, state=state)
        self.record(type(event).__name__, getattr(event, "actor", ""))
        return state

    def fail_once(self) -> None:
        if self.next_error is not None:
            error, self.next_error = self.next_error, None
            raise error

    def set(self, state: State) -> None:
        self._targets.setdefault(state.target, FakeTarget(self, state)).state = state
        rollout = state.rollout
        carried_out = (rollout.suggestion,) if rollout else ()
        for suggestion in (*state.suggestions.ended, *state.suggestions.pending, *carried_out):
            self._suggestions[suggestion.id] = suggestion
        if rollout:
            self._rollouts[rollout.id] = (state.target, rollout)

    def record(self, event: str, actor: str = "") -> None:
        """Append to the audit and notify the followers."""
        entry = {
            "seq": len(self._records) + 1,
            "at": self.at.isoformat(),
            "target": self.target,
            "event": event,
            "actor": actor,
        }
        self._records.append(entry)
        for queue in self._followers:
            queue.put_nowait(entry)

    def suggest(
        self,
        to: Mapping[str, Value],
        why: str = "3 requests wait",
        policy: str = "seqs",
        rule: str = "Q1",
        after: str = "",
    ) -> Suggestion:
        """Make a suggestion that waits; one that waited is superseded."""
        state = self._targets[self.target].state
        for earlier in state.suggestions.pending:
            if earlier.proposal.to.keys() & to.keys():
                state = end_suggestion(state, earlier, "superseded", "")
        self.set(state)
        proposal = Proposal(
            rule=rule,
            to=to,
            why=why,
            expects="fewer requests wait",
            risks="more KV cache is used",
            source="vllm-project/vllm#1",
            after=after,
            evidence=(Evidence(metric="waiting", value=3, unit="requests", window_s=60),),
        )
        blue = state.fleet.blue
        before = {knob: blue.setting.get(knob) if blue else None for knob in to}
        suggestion = Suggestion(
            id=f"{self.target}-s{len(self._suggestions) + 1}",
            target=self.target,
            policy=policy,
            proposal=proposal,
            before=before,
            base=digest(dict(blue.setting) if blue else {}),
            notes=(),
            made_at=self.at,
            expires_at=self.at + timedelta(hours=1),
            digest="",
        )
        suggestions = Suggestions(checking=suggestion, open=state.suggestions.open)
        self.set(replace(state, phase=Phase.CHECKING, suggestions=suggestions))
        return suggestion if self.checks else self.answer(PreflightResult(why="two GPUs are free"))

    def answer(self, preflight: PreflightResult) -> Suggestion:
        """End the check of the suggestion, as an engine's answer does."""
        state = self._targets[self.target].state
        checked, others = state.suggestions.checking, state.suggestions.open
        if checked is None:
            raise ValueError("nothing is checked")
        if preflight.problem:
            refused = replace(checked, status="refused", notes=(*checked.notes, preflight.problem))
            suggestions = Suggestions(open=others, ended=(refused,))
            self.set(replace(state, phase=Phase.OBSERVING, suggestions=suggestions))
            return refused
        proposal = checked.proposal
        shown = {"to": dict(proposal.to), "before": dict(checked.before), "why": proposal.why}
        opened = replace(checked, status="open", preflight=preflight, digest=digest(shown))
        self.set(replace(state, phase=Phase.PROPOSED, suggestions=Suggestions(open=(opened, *others))))
        return opened

    def settle(self, *, promoted: bool) -> None:
        """End the rollout that runs."""
        state = self._targets[self.target].state
        if state.rollout is None:
            raise ValueError("no rollout runs")
        ended = replace(
            state.rollout, outcome="promoted" if promoted else "rolled_back", ended_at=self.at, why="judged"
        )
        self.set(replace(state, phase=Phase.OBSERVING, rollout=ended))

    def _after(self, state: State, event: Event) -> State:
        match event:
            case Paused():
                held, maintenance = state.admin_pause or event.by_admin, event.maintenance
                note = f"paused by {event.actor}"
                return replace(state, paused=True, maintenance=maintenance, admin_pause=held, note=note)
            case Resumed():
                return replace(state, paused=False, maintenance=False, admin_pause=False, note="")
            case ChangeAsked():
                return self._proposed(state, event)
            case Approved():
                return self._approved(state, event)
            case Denied() if suggestion := state.suggestions.find_pending(event.suggestion):
                denied = end_suggestion(state, suggestion, "denied", "", by=event.actor)
                return enter_fitting_phase(denied, self.at, event.reason)
            case Aborted() if state.rollout is None or event.rollout != state.rollout.id:
                return state
            case Aborted() if state.phase in {Phase.LAUNCHING, Phase.WARMING, Phase.CANARY}:
                return replace(state, phase=Phase.ROLLING_BACK, note=event.reason)
            case Aborted() if state.phase is Phase.PROMOTING:
                return replace(state, note="blue is already being retired")
            case _:
                return state

    def _proposed(self, state: State, event: ChangeAsked) -> State:
        if state.phase not in {Phase.OBSERVING, Phase.CHECKING, Phase.PROPOSED}:
            return replace(state, note=f"the target is {state.phase.value}")
        for knob, value in event.to.items():
            bound = self.bounds.get(knob)
            if bound is not None and isinstance(value, int | float) and value > bound:
                return replace(state, note=f"{knob} {value} is above the bound {bound:g}")
        self.target = state.target
        self.suggest(event.to, why=event.reason, policy=event.actor, rule=PERSON, after=event.after)
        return self._targets[self.target].state

    def _approved(self, state: State, event: Approved) -> State:
        suggestion = state.suggestions.find_pending(event.suggestion)
        if suggestion is None or suggestion.status != "open" or suggestion.digest != event.digest:
            return replace(state, note="there is nothing to approve")
        for other in state.suggestions.open:
            if other.id != suggestion.id:
                state = end_suggestion(state, other, "superseded", "")
        approved = replace(suggestion, status="approved", decided_by=event.actor)
        rollout = Canary(
            id=f"{self.target}-o{len(self._rollouts) + 1}",
            suggestion=approved,
            server=f"{self.target}-r1",
            replicas={},
            plan=PLAN,
            started_at=self.at,
            phase_since=self.at,
        )
        suggestions = replace(state.suggestions, open=())
        return replace(state, phase=Phase.LAUNCHING, suggestions=suggestions, rollout=rollout)


@dataclass
class MachineDaemonView(FakeDaemonView):
    """A daemon view that applies events with the real state machine."""

    def _after(self, state: State, event: Event) -> State:
        return Machine(rules()).step(state, event)[0]
