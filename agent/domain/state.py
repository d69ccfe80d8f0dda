"""The persisted state of one target. Small and frozen; the journal holds all of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.effects import Effects, SetKnobs
from flettner.agent.domain.error_budget import Budget
from flettner.agent.domain.fleet import Fleet, Split
from flettner.agent.domain.model import Approvers, Mode, Outcome, Server
from flettner.agent.domain.prediction_check import LawDrop, PredictionCheck
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary, HotChange, Regimes, Saving
from flettner.agent.domain.server_health import Failure, ServerHealth
from flettner.agent.domain.start_cost import UNKNOWN_SPEED, Speed, StartCost
from flettner.agent.domain.suggestion import Sighting, Suggestion, Suggestions


class Phase(Enum):
    OBSERVING = "observing"
    CHECKING = "checking"  # the engine runs the preflight of a suggestion
    PROPOSED = "proposed"  # a suggestion waits for a decision
    DRAINING = "draining"  # an old server drains and stops, so that green can use its slot
    LAUNCHING = "launching"
    WARMING = "warming"
    CANARY = "canary"
    TRIAL = "trial"  # the present and the new values take turns on the servers that run
    SAVING = "saving"  # some servers have no traffic, and stop once the others have carried a peak
    REPLACING = "replacing"  # the canary passed: one further new server after the other takes its share
    PROMOTING = "promoting"  # the old servers drain and are retired; after the first one there is no way back
    ROLLING_BACK = "rolling_back"
    COOLDOWN = "cooldown"
    RESTORING = "restoring"  # a server exited: one with the setting in force starts
    HALTED = "halted"  # an operator must act; flettner changes nothing


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
    waiting: float = 0.0  # requests in the fleet's queues
    speed: Speed = UNKNOWN_SPEED  # of the fleet, decaying
    calibration: Mapping[str, Calibration] = field(
        default_factory=dict
    )  # of the fleet, by stream, the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    target: str
    phase: Phase = Phase.OBSERVING
    mode: Mode = "advise"
    approval: Approvers = "any"
    epoch: int = 0
    paused: bool = False
    maintenance: bool = False  # paused, and a server that exits is left to the operator
    admin_pause: bool = False  # only an admin ends the pause
    note: str = ""  # the reason for the present state, for operators
    until: datetime | None = None  # end of a cool-down
    fleet: Fleet = field(default_factory=Fleet)
    split: Split = field(default_factory=Split)
    knobs: SetKnobs | None = None  # the last change of running servers that was requested
    effects: Effects = field(default_factory=Effects)
    suggestions: Suggestions = field(default_factory=Suggestions)
    sightings: Mapping[str, Sighting] = field(default_factory=dict)  # by rule and by change; lost in a crash
    rollout: Canary | HotChange | Saving | Regimes | None = None  # the latest
    regimes: Regimes | None = None  # the latest approval to switch between two settings
    failing: Mapping[str, Failure] = field(default_factory=dict)  # by server; empty without a failure
    health: Mapping[str, ServerHealth] = field(default_factory=dict)  # by server; lost in a crash
    outcomes: tuple[Outcome, ...] = ()
    start_costs: tuple[StartCost, ...] = ()  # of the latest greens on the servers' own card, oldest first
    traffic: RecentTraffic = field(default_factory=RecentTraffic)
    predictions: tuple[PredictionCheck, ...] = ()  # compared with the measurement, oldest first
    law_drop: LawDrop | None = None  # the latest
    budget: Budget = field(default_factory=Budget)  # of the SLO, over all servers and phases

    @property
    def canary(self) -> Canary:
        """The rollout of a phase with new servers. Raises AssertionError in any other."""
        if isinstance(self.rollout, Canary):
            return self.rollout
        raise AssertionError(f"{self.target} has no canary in {self.phase}")

    @property
    def hot_change(self) -> HotChange:
        """The rollout of a phase in which running servers change. Raises AssertionError in any other."""
        if isinstance(self.rollout, HotChange):
            return self.rollout
        raise AssertionError(f"{self.target} changes no running servers in {self.phase}")

    @property
    def saving(self) -> Saving:
        """The saving that is tried or in force. Raises AssertionError if there is none."""
        if isinstance(self.rollout, Saving):
            return self.rollout
        raise AssertionError(f"{self.target} saves no servers in {self.phase}")

    @property
    def switching(self) -> Regimes | None:
        """The approval to switch between two settings that is in force; None: there is none."""
        return self.regimes if self.regimes is not None and self.regimes.ended_at is None else None

    @property
    def checking(self) -> Suggestion:
        """The suggestion whose preflight runs. Raises AssertionError if there is none."""
        if self.suggestions.checking is not None:
            return self.suggestions.checking
        raise AssertionError(f"{self.target} checks no suggestion in {self.phase}")

    @property
    def greens(self) -> tuple[Server, ...]:
        """All servers with the candidate setting; the newest may not be up yet."""
        return self.rollout.greens if isinstance(self.rollout, Canary) else ()

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers of the target, of both settings, running or not."""
        return (*self.fleet.servers, *self.greens)

    @property
    def reachable(self) -> tuple[Server, ...]:
        """Servers that have an address and were not stopped by flettner: they can be scraped and watched."""
        return tuple(s for s in self.servers if s.address and s.name not in self.fleet.stopped)
