"""Everything a restart must remember of one target. Small and frozen; the journal holds it whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Literal

from agent.domain.answers import AnswerComparison
from agent.domain.calibration import Calibration
from agent.domain.effects import Drain, Examine, Launch, Preflight, Retire, Route, Stop, WarmUp
from agent.domain.error_budget import Budget
from agent.domain.model import Forecast, Mode, Outcome, Plan, PreflightResult, Proposal, Server, Strategy
from agent.domain.request_counts import RequestCounts
from agent.domain.trial import Trial
from vllm_facts.values import Setting

Awaited = Preflight | Launch | WarmUp | Examine | Route | Drain | Stop | Retire

SuggestionStatus = Literal["checking", "open", "approved", "denied", "expired", "superseded", "refused"]
"""`checking`: the engine is asked what would come of it; no digest yet. `refused`: by the engine's answer."""


FORMER_PHASES = {"vacating": "draining", "spreading": "replacing"}
"""Names of 0.1 that older journals hold."""


class Phase(Enum):
    OBSERVING = "observing"
    CHECKING = "checking"  # the engine runs the preflight of a suggestion
    PROPOSED = "proposed"  # a suggestion waits for a decision
    DRAINING = "draining"  # an old server drains and stops, so that green can use its slot
    LAUNCHING = "launching"
    WARMING = "warming"
    CANARY = "canary"
    REPLACING = "replacing"  # the canary passed: one further new server after the other takes its share
    PROMOTING = "promoting"  # the old servers drain and are retired; after the first one there is no way back
    ROLLING_BACK = "rolling_back"
    COOLDOWN = "cooldown"
    RESTORING = "restoring"  # a server exited: one with the setting in force starts
    HALTED = "halted"  # an operator must act; trimtab changes nothing

    @classmethod
    def _missing_(cls, value: object) -> "Phase | None":
        return cls(FORMER_PHASES[value]) if isinstance(value, str) and value in FORMER_PHASES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A proposal that passed the guard: what a person approves, by its digest."""

    id: str
    target: str
    policy: str
    proposal: Proposal
    before: Setting  # the values that the changed knobs have now
    base: str  # digest of the whole setting in force
    notes: tuple[str, ...]  # what the guard changed about it
    made_at: datetime
    expires_at: datetime
    digest: str
    servers: tuple[str, ...] = ()  # those that serve: with others it is another change
    prospect: PreflightResult = field(default_factory=PreflightResult)
    plan: Plan | None = None  # frozen when the engine has answered; None: it has not yet
    forecast: Forecast | None = None
    status: SuggestionStatus = "checking"
    decided_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One approved suggestion being carried out."""

    id: str
    suggestion: str
    server: str  # green's name
    plan: Plan
    started_at: datetime
    phase_since: datetime
    strategy: Strategy = "surge"
    outage_s: float = 0.0  # as the suggestion told it; 0: there is none
    old: tuple[str, ...] = ()  # the servers whose places are to be turned
    passed: bool = False  # the canary passed: the other places are turned
    held: bool = False  # the hold-back passed: the last old server, which was its control, gives its place
    step: int = 0
    step_since: datetime | None = None  # when the step's split was in force
    green: RequestCounts = field(default_factory=RequestCounts)  # this step
    blue: RequestCounts = field(default_factory=RequestCounts)  # this step
    record: RequestCounts = field(default_factory=RequestCounts)  # blue alone, before the canary
    trial: Trial = field(default_factory=Trial)  # the judge's evidence
    parked: str = ""  # why green waits without traffic: nothing can be seen of it
    level: tuple[RequestCounts, RequestCounts] = (
        RequestCounts(),
        RequestCounts(),
    )  # green and blue at equal load, in the steps that ended
    gain: str = ""  # what green was measurably better at
    heard_at: datetime | None = None  # the last second in which green answered a request
    exposed: RequestCounts = field(default_factory=RequestCounts)  # green, all steps
    bad: int = 0  # of the steps that ended, by the judge's own edges
    step_bad: int = 0  # of this step
    restarts: int = 0
    quality: AnswerComparison | None = (
        None  # of green's answers to the golden prompts, where it had to give them
    )
    outcome: Literal["running", "promoted", "rolled_back"] = "running"
    why: str = ""
    log: tuple[str, ...] = ()  # the lost server's own last lines
    hung: bool = False  # green no longer answers: its open requests are not waited for long
    lost: int = 0  # requests that a retired server still had open
    ended_at: datetime | None = None

    @property
    def bad_exposed(self) -> int:
        """Requests that green failed or answered late: by the SLO, or by the judge, who may be stricter."""
        return max(self.exposed.errors + self.exposed.late, self.bad + self.step_bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    target: str
    phase: Phase = Phase.OBSERVING
    mode: Mode = "advise"
    epoch: int = 0
    paused: bool = False
    blue: Server | None = None
    peers: tuple[Server, ...] = ()  # the other servers of the setting in force
    vacated: tuple[str, ...] = ()  # names of those of blue and peers that were stopped for a new one
    green: Server | None = None  # the newest server of the candidate setting
    crew: tuple[Server, ...] = ()  # the earlier ones, which carry traffic
    gone: tuple[str, ...] = ()  # of all these, the names of those whose process has ended
    leaving: tuple[Retire, ...] = ()  # on the side: asked for until they are done
    leaving_asked: datetime | None = None
    route: Route | None = None  # the last one asked for
    awaiting: Awaited | None = None  # the effect whose outcome decides how it goes on
    effects: int = 0  # number of the last effect
    servers: int = 0  # number of the last server named
    suggestions: int = 0
    suggestion: Suggestion | None = None  # the latest
    rollout: Rollout | None = None  # the latest
    until: datetime | None = None  # end of a cool-down
    retry_at: datetime | None = None  # when the awaited effect, which failed, is asked for again
    tries: int = 0
    outcomes: tuple[Outcome, ...] = ()
    recent: tuple[
        RequestCounts, ...
    ] = ()  # what the fleet's requests did in this minute, and in the one before
    recent_since: datetime | None = None
    calibration: Mapping[str, Calibration] = field(default_factory=dict)  # of the fleet, the latest
    budget: Budget = field(default_factory=Budget)  # what all servers did with the SLO's, in all phases
    note: str = ""  # why it is as it is, for people

    @property
    def fleet(self) -> tuple[Server, ...]:
        """All servers of the setting in force, vacated and gone ones too."""
        return (self.blue, *self.peers) if self.blue is not None else self.peers

    @property
    def standing(self) -> tuple[Server, ...]:
        """Those of them that can carry traffic."""
        return tuple(s for s in self.fleet if s.name not in self.vacated and s.name not in self.gone)

    @property
    def newcomers(self) -> tuple[Server, ...]:
        """All servers of the candidate setting; the newest may not be up yet."""
        return (*self.crew, self.green) if self.green is not None else self.crew

    @property
    def present(self) -> tuple[Server, ...]:
        return (*self.fleet, *self.newcomers)

    @property
    def up(self) -> tuple[Server, ...]:
        """Those that have an address and were not stopped by us: what can be asked and watched."""
        return tuple(s for s in self.present if s.address and s.name not in self.vacated)
