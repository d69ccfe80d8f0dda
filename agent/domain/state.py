"""The persisted state of one target. Small and frozen; the journal holds all of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Literal

from flettner.agent.domain.answers import AnswerComparison
from flettner.agent.domain.blocks import BlockTrial
from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence
from flettner.agent.domain.effects import Effects, SetKnobs
from flettner.agent.domain.error_budget import Budget
from flettner.agent.domain.fleet import Fleet, Split
from flettner.agent.domain.model import (
    Approvers,
    Forecast,
    Mode,
    Outcome,
    Plan,
    PreflightResult,
    Proposal,
    Server,
    Strategy,
)
from flettner.agent.domain.prediction_check import LawDrop, PredictionCheck
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.server_health import Failure, ServerHealth
from flettner.agent.domain.statuses import SuggestionStatus
from flettner.vllm_facts.values import Setting


class Phase(Enum):
    OBSERVING = "observing"
    CHECKING = "checking"  # the engine runs the preflight of a suggestion
    PROPOSED = "proposed"  # a suggestion waits for a decision
    DRAINING = "draining"  # an old server drains and stops, so that green can use its slot
    LAUNCHING = "launching"
    WARMING = "warming"
    CANARY = "canary"
    TRIAL = "trial"  # the present and the new values take turns on the servers that run
    REPLACING = "replacing"  # the canary passed: one further new server after the other takes its share
    PROMOTING = "promoting"  # the old servers drain and are retired; after the first one there is no way back
    ROLLING_BACK = "rolling_back"
    COOLDOWN = "cooldown"
    RESTORING = "restoring"  # a server exited: one with the setting in force starts
    HALTED = "halted"  # an operator must act; flettner changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A proposal that passed the guard and is approved by its digest."""

    id: str
    target: str
    policy: str
    proposal: Proposal
    before: Setting  # present values of the changed knobs
    base: str  # digest of the full setting in force
    notes: tuple[str, ...]  # what the guard changed
    made_at: datetime
    expires_at: datetime
    digest: str
    servers: tuple[str, ...] = ()  # the serving servers; with others it is another change
    preflight: PreflightResult = field(default_factory=PreflightResult)
    plan: Plan | None = None  # frozen after the preflight; None before
    forecast: Forecast | None = None
    rate_rps: float | None = None  # requests per second that the plan and the forecast were made for
    refreshed_at: datetime | None = None  # the latest refresh of its numbers; None: as it was made
    changed: str = ""  # what that refresh changed
    status: SuggestionStatus = "checking"
    decided_by: str = ""

    @property
    def held(self) -> bool:
        """Whether it cannot be approved: what writes the server's manifest would revert the change."""
        return bool(self.preflight.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """How long policies have proposed something. Only seconds with fresh metrics and load count."""

    since: datetime  # without a longer gap than a flicker
    seen_at: datetime  # the latest time
    missing_s: int = 0  # seconds without it since then


@dataclass(frozen=True, slots=True)
class SteadyRate:
    """The fleet's request rate while it did not change."""

    rps: float
    since: datetime  # the load has not changed, and no rollout was running, since then
    at: datetime  # the latest second


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentTraffic:
    """The traffic outside rollouts, with which the judge compares."""

    minutes: tuple[RequestCounts, ...] = ()  # the fleet's counts of this minute and the previous one
    since: datetime | None = None  # the begin of this minute
    until: datetime | None = None  # the latest second in it
    steady: SteadyRate | None = None  # None: not measured
    calibration: Mapping[str, Calibration] = field(
        default_factory=dict
    )  # of the fleet, by stream, the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One approved suggestion and its execution."""

    id: str
    suggestion: str
    server: str  # green's name; empty where no server starts
    plan: Plan
    started_at: datetime
    phase_since: datetime
    strategy: Strategy = "surge"
    outage_s: float = 0.0  # as shown in the suggestion; 0: none
    old: tuple[str, ...] = ()  # the servers to replace
    replicas: Mapping[str, int] = field(default_factory=dict)  # of each old server without the rollout
    passed: bool = False  # the canary passed: the remaining servers are replaced
    held: bool = False  # the hold step passed: the last old server, its control, is replaced
    step: int = 0
    step_since: datetime | None = None  # when the step's split came into force
    green: RequestCounts = field(default_factory=RequestCounts)  # this step
    blue: RequestCounts = field(default_factory=RequestCounts)  # this step
    baseline: RequestCounts = field(default_factory=RequestCounts)  # blue before the canary
    evidence: CanaryEvidence = field(default_factory=CanaryEvidence)
    blocks: BlockTrial | None = None  # the evidence of a change of running servers
    parked: str = ""  # why green is suspended without traffic: no admissible evidence
    level: tuple[RequestCounts, RequestCounts] = (RequestCounts(), RequestCounts())
    """Green and blue at equal load, in the steps that ended."""
    waits: str = ""  # what the step still lacks, each with its evidence
    gain: str = ""  # what green is measurably better at
    heard_at: datetime | None = None  # the last second in which green answered a request
    exposed: RequestCounts = field(default_factory=RequestCounts)  # green, all steps
    bad: int = 0  # of finished steps, by the judge's edges
    step_bad: int = 0  # of this step
    restarts: int = 0
    quality: AnswerComparison | None = None  # comparison of golden answers, if the plan asked for it
    outcome: Literal["running", "promoted", "rolled_back"] = "running"
    why: str = ""
    log: tuple[str, ...] = ()  # the lost server's last log lines
    hung: bool = False  # green no longer answers: its drain is short
    lost: int = 0  # requests that were open when a server was retired
    ended_at: datetime | None = None

    @property
    def bad_exposed(self) -> int:
        """Requests that failed, stalled or were late at green, by the SLO or by the judge, if stricter."""
        return max(self.exposed.missed, self.bad + self.step_bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    target: str
    phase: Phase = Phase.OBSERVING
    mode: Mode = "advise"
    approval: Approvers = "any"
    epoch: int = 0
    paused: bool = False
    fleet: Fleet = field(default_factory=Fleet)
    green: Server | None = None  # the newest server of the candidate setting
    crew: tuple[Server, ...] = ()  # earlier servers of the candidate setting, which carry traffic
    split: Split = field(default_factory=Split)
    knobs: SetKnobs | None = None  # the last change of running servers that was requested
    effects: Effects = field(default_factory=Effects)
    failing: Mapping[str, Failure] = field(default_factory=dict)  # by server, of those that fail at present
    health: Mapping[str, ServerHealth] = field(default_factory=dict)  # by server; lost in a crash
    suggestions: int = 0
    suggestion: Suggestion | None = None  # checked or carried out; else the first open one, or the latest
    also_open: tuple[Suggestion, ...] = ()  # the other open ones, by rank
    ended: tuple[Suggestion, ...] = ()  # those that ended in the latest step
    sightings: Mapping[str, Sighting] = field(default_factory=dict)  # by rule and by change; lost in a crash
    rollout: Rollout | None = None  # the latest
    until: datetime | None = None  # end of a cool-down
    outcomes: tuple[Outcome, ...] = ()
    traffic: RecentTraffic = field(default_factory=RecentTraffic)
    predictions: tuple[PredictionCheck, ...] = ()  # compared with what was measured, oldest first
    law_drop: LawDrop | None = None  # the latest
    budget: Budget = field(default_factory=Budget)  # of the SLO, over all servers and phases
    note: str = ""  # the reason for the present state, for operators

    @property
    def open_suggestions(self) -> tuple[Suggestion, ...]:
        """The suggestions that need a decision, the most important first."""
        first = (self.suggestion,) if self.suggestion and self.suggestion.status == "open" else ()
        return (*first, *self.also_open)

    @property
    def greens(self) -> tuple[Server, ...]:
        """All servers with the candidate setting; the newest may not be up yet."""
        return (*self.crew, self.green) if self.green is not None else self.crew

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers of the target, of both settings, running or not."""
        return (*self.fleet.servers, *self.greens)

    @property
    def reachable(self) -> tuple[Server, ...]:
        """Servers that have an address and were not stopped by flettner: they can be scraped and watched."""
        return tuple(s for s in self.servers if s.address and s.name not in self.fleet.stopped)
