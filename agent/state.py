"""Everything a restart must remember of one target. Small and frozen; the journal holds it whole."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Literal

from agent.arm import Arm
from agent.effects import Drain, Launch, Retire, Route, WarmUp
from agent.model import Mode, Outcome, Plan, Proposal, Server, Setting

Awaited = Launch | WarmUp | Route | Drain | Retire


class Phase(Enum):
    OBSERVING = "observing"
    PROPOSED = "proposed"  # a suggestion waits for a person
    LAUNCHING = "launching"
    WARMING = "warming"
    CANARY = "canary"
    PROMOTING = "promoting"  # the point of no return is passed: blue drains and goes
    ROLLING_BACK = "rolling_back"
    COOLDOWN = "cooldown"
    RESTORING = "restoring"  # no server is left: one with the setting in force is started
    HALTED = "halted"  # an operator must look; nothing is changed any more


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
    status: Literal["open", "approved", "denied", "expired", "superseded"] = "open"
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
    step: int = 0
    step_since: datetime | None = None  # when the step's split was in force
    green: Arm = field(default_factory=Arm)  # this step
    blue: Arm = field(default_factory=Arm)  # this step
    record: Arm = field(default_factory=Arm)  # blue alone, before the canary
    heard_at: datetime | None = None  # the last second in which green answered a request
    exposed: Arm = field(default_factory=Arm)  # green, all steps
    bad: int = 0  # of the steps that ended, by the judge's own edges
    step_bad: int = 0  # of this step
    restarts: int = 0
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
    green: Server | None = None
    gone: tuple[str, ...] = ()  # of these two, the names of those whose process has ended
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
    note: str = ""  # why it is as it is, for people
