"""A rollout: one approved suggestion and its execution, by new servers or on the running ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from flettner.agent.domain.answers import AnswerComparison
from flettner.agent.domain.blocks import BlockTrial
from flettner.agent.domain.canary_evidence import CanaryEvidence
from flettner.agent.domain.load_watch import LoadWatch
from flettner.agent.domain.model import Plan, SavingLimits, Server
from flettner.agent.domain.regimes import RegimePlan
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.start_cost import UNKNOWN_SPEED, Speed
from flettner.agent.domain.suggestion import Suggestion
from flettner.vllm_facts.values import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What a canary and a change of running servers have in common."""

    id: str
    suggestion: Suggestion  # as it was approved
    plan: Plan
    started_at: datetime
    phase_since: datetime
    baseline: RequestCounts = field(default_factory=RequestCounts)  # the servers in force before it
    passed: bool = False  # the canary or the trial passed
    waits: str = ""  # what a verdict still lacks, with its evidence
    exposed: RequestCounts = field(default_factory=RequestCounts)  # under the candidate setting
    bad: int = 0  # of them by the judge's edges, in the steps that ended
    outcome: Literal["running", "promoted", "rolled_back"] = "running"
    why: str = ""
    ended_at: datetime | None = None

    @property
    def bad_exposed(self) -> int:
        """Exposed requests that failed, stalled or were late, by the SLO or by the judge, if stricter."""
        return max(self.exposed.missed, self.bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary(Rollout):
    """A rollout with new servers. Green is the newest of them; earlier ones carry traffic meanwhile."""

    server: str  # the name of the first green
    replicas: Mapping[str, int]  # of each server to replace, without the rollout
    greens: tuple[Server, ...] = ()  # without retired servers; promoted servers are part of the fleet
    refilling: bool = False  # rolling back: the old server of the slot that a green left starts again
    hold_passed: bool = False  # the last old server, the control of the hold step, is replaced
    step: int = 0
    step_since: datetime | None = None  # when the step's split came into force
    green_counts: RequestCounts = field(default_factory=RequestCounts)  # this step
    blue_counts: RequestCounts = field(default_factory=RequestCounts)  # this step
    level: tuple[RequestCounts, RequestCounts] = (RequestCounts(), RequestCounts())
    """Green and blue at equal load, in the steps that ended."""
    evidence: CanaryEvidence = field(default_factory=CanaryEvidence)
    step_bad: int = 0  # bad requests of this step
    starting: Speed = UNKNOWN_SPEED  # of blue while green started
    beside: Speed = UNKNOWN_SPEED  # of blue while green had a share
    heard_at: datetime | None = None  # the last second in which green answered a request
    parked: str = ""  # why green is suspended without traffic: no admissible evidence
    gain: str = ""  # what green is measurably better at
    quality: AnswerComparison | None = None  # of golden answers, if the plan asked for it
    restarts: int = 0  # of the daemon
    log: tuple[str, ...] = ()  # the lost server's last log lines
    hung: bool = False  # green no longer answers: its drain is short
    clients: Mapping[str, int] = field(default_factory=dict)
    """Requests while green started, by their clients' bucket: the judge divides the buckets by them."""
    undrained: Mapping[str, int] = field(default_factory=dict)
    """Requests that a server still had at the end of its drain, by server."""
    undrained_at: datetime | None = None
    lost: int = 0  # of those, the ones that clients lost; all of them where nothing counts these
    kind: Literal["canary"] = "canary"

    @property
    def green(self) -> Server:
        """The newest server of the candidate setting, in phases that have one; it may not be up yet."""
        return self.greens[-1]

    @property
    def earlier_greens(self) -> tuple[Server, ...]:
        return self.greens if self.refilling else self.greens[:-1]

    @property
    def newest(self) -> Server | None:
        """Green; None if it has left, and an earlier green does not take its part yet."""
        return self.greens[-1] if self.greens and not self.refilling else None

    @property
    def bad_exposed(self) -> int:
        return max(self.exposed.missed, self.bad + self.step_bad)

    def with_fresh_step(self, *, holding: bool) -> "Canary":
        """Begin the evidence of a step, which counts once its split is in force."""
        return replace(
            self,
            step_since=None,
            green_counts=RequestCounts(),
            blue_counts=RequestCounts(),
            evidence=self.evidence.next_step(holding=holding),
            waits="",
            bad=self.bad + self.step_bad,
            step_bad=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HotChange(Rollout):
    """A rollout on the servers that run: the present and the new values take turns."""

    trial: BlockTrial
    kind: Literal["hot"] = "hot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving(Rollout):
    """A rollout to fewer servers. Counts are of the servers that serve on, and go on while it is in force."""

    limits: SavingLimits
    limit_rps: float  # above it the spared servers serve again
    minute: RequestCounts = field(default_factory=RequestCounts)  # this minute
    minute_since: datetime | None = None
    recent: RequestCounts = field(default_factory=RequestCounts)  # the last minutes, ten at most
    recent_minutes: int = 0
    tested: RequestCounts = field(default_factory=RequestCounts)  # minutes with nearly the load of the peak
    tested_minutes: int = 0
    unseen_s: int = 0  # seconds in a row in which no request could be counted
    watch: LoadWatch = field(default_factory=LoadWatch)
    returned_at: datetime | None = None  # when it was in force, and the spared servers began to serve again
    kind: Literal["saving"] = "saving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regimes(Rollout):
    """The approval to switch between two settings as the load changes. Each switch is a HotChange."""

    before: Setting  # of the knobs of the regimes, at the approval
    values: Setting  # that flettner has set last, at first those before
    above: bool | None = None  # the regime that the load is of; None: not known yet
    other_s: int = 0  # seconds in which the load was of the other one
    counts: RequestCounts = field(default_factory=RequestCounts)  # under the values of its regime
    counted_s: int = 0
    switched: int = 0  # changes so far, which number them
    switches: tuple[datetime, ...] = ()  # of the last day
    trial: str = ""  # the id of a change whose end is not noted yet
    wait_until: datetime | None = None  # no change before
    failed: int = 0  # tries of the way back to the values from before
    ending: str = ""  # why it ends; it has ended once the values from before are back
    kind: Literal["regimes"] = "regimes"

    @property
    def regimes(self) -> RegimePlan:
        """Raises AssertionError if the suggestion has none."""
        if self.suggestion.proposal.regimes is None:
            raise AssertionError(f"{self.suggestion.id} has no regimes")
        return self.suggestion.proposal.regimes

    def covers(self, rollout_id: str) -> bool:
        """Whether it is the id of this approval or of one of its switches."""
        return self.id in {rollout_id, rollout_id.rpartition(".")[0]}
