"""The JSON documents that the API gives: what a person needs of the core's values, and no more."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from agent.api.daemon_view import DaemonView
from agent.audit.history import Point
from agent.domain.answers import AnswerComparison
from agent.domain.error_budget import Burn
from agent.domain.model import Evidence, Forecast, Mode, Outcome, Plan, Server, Slo, Strategy
from agent.domain.reading import Reading
from agent.domain.request_counts import RequestCounts, quantile
from agent.domain.state import Phase, Rollout, State, Suggestion, SuggestionStatus
from agent.judge.report import EvidenceReport, report_evidence
from vllm_facts.masking import mask, masked
from vllm_facts.values import ChangeClass, Value

P95 = 0.95
DocumentText = Annotated[
    str, AfterValidator(mask)
]  # may quote a server's log or a command line, with what is in it
Values = Annotated[Mapping[str, Value], AfterValidator(masked)]


class Document(BaseModel):
    model_config = ConfigDict(frozen=True)


class ServerDocument(Document):
    name: str
    color: Literal["blue", "green"]
    address: str
    weight: int | None = Field(description="percent of the traffic; null: no split was asked for yet")
    ours: bool
    setting: Values


class SourceDocument(Document):
    source: str
    available: bool
    at: datetime
    why: DocumentText


class TargetDocument(Document):
    name: str
    phase: Phase
    mode: Mode
    paused: bool
    note: DocumentText = Field(description="why it is as it is")
    until: datetime | None = Field(description="end of a cool-down, or time of the next try")
    slo: Slo | None
    budget: list[Burn] = Field(
        description="of each window the objective of the SLO that suffers most; rate: how many times faster "
        "than it may its error budget is used up"
    )
    servers: list[ServerDocument]
    goodput_rps: float | None
    ttft_p95_s: float | None
    reading: Reading | None
    sources: list[SourceDocument]
    suggestion: str | None = Field(description="id of the suggestion that waits for a person")
    rollout: str | None = Field(description="id of the latest rollout")
    outcomes: list[Outcome] = Field(description="what became of earlier changes, oldest first")


class PreflightDocument(Document):
    strategy: Strategy = Field(
        description="surge: beside the others; replace: one server after the other gives its place; "
        "swap: the only server gives its place, a planned outage"
    )
    why: DocumentText = Field(description="why this strategy")
    start_s: float | None = Field(description="how long a start should take; null: nothing is known")
    outage_s: float = Field(description="nothing serves for so long, as planned; 0: no outage")
    notes: list[DocumentText] = Field(description="warm or cold start, what vLLM makes of the flags")


class SuggestionDocument(Document):
    id: str
    target: str
    policy: str
    rule: str
    klass: ChangeClass = Field(serialization_alias="class")
    before: Values = Field(serialization_alias="from")
    to: Values
    why: DocumentText
    expects: DocumentText
    risks: DocumentText
    source: str
    evidence: list[Evidence]
    mitigation: bool
    notes: list[DocumentText] = Field(
        description="what the guard changed about it, and how it will be done; the last one of a refused "
        "suggestion says why"
    )
    plan: Plan | None = Field(description="how it will be carried out; null: the engine has not answered yet")
    forecast: Forecast | None = Field(
        description="how long it will take to know, from the traffic of the last minutes; null: not known"
    )
    prospect: PreflightDocument | None = Field(
        description="what the engine says will come of it; null until it has answered, or when it refused"
    )
    base: str = Field(description="digest of the whole setting in force")
    made_at: datetime
    expires_at: datetime
    digest: str = Field(description="what an approval must name; empty until the engine has answered")
    status: SuggestionStatus = Field(
        description="checking: the engine is asked what would come of it, nobody can approve it yet; "
        "refused: by the engine's answer"
    )
    decided_by: str


class RequestCountsDocument(Document):
    """Counts of attempts; latencies in seconds."""

    total: int
    errors: int
    gave_up: int
    refused: int = Field(description="answered 400 to 499; not of the total")
    ttft_p95_s: float | None
    itl_p95_s: float | None
    e2e_p95_s: float | None


class RolloutDocument(Document):
    id: str
    target: str
    suggestion: str
    outcome: Literal["running", "promoted", "rolled_back"]
    phase: Phase | None = Field(description="of the target until the rollout has ended, else null")
    why: DocumentText
    strategy: Strategy
    outage_s: float = Field(description="nothing serves for so long, as planned; 0: no outage")
    plan: Plan
    step: int
    started_at: datetime
    phase_since: datetime
    step_since: datetime | None
    ended_at: datetime | None
    green: RequestCountsDocument = Field(description="this step")
    blue: RequestCountsDocument = Field(description="this step")
    record: RequestCountsDocument = Field(description="blue alone, before the canary")
    exposed: RequestCountsDocument = Field(description="green, all steps")
    bad_exposed: int = Field(
        description="failed, later than promised or than blue, or refused beyond the share that blue refuses"
    )
    judged: list[EvidenceReport] = Field(description="the evidence of this step, for each stream of requests")
    over_time: list[Point] = Field(description="how the evidence grew; not in lists")
    valid_s: float = Field(description="seconds of this step that count; those that are held do not")
    parked: DocumentText = Field(description="why green waits without traffic; empty: it does not")
    gain: DocumentText = Field(
        description="what green was measurably better at; empty: at nothing, or not asked yet"
    )
    quality: AnswerComparison | None = Field(
        description="how green's answers to golden prompts compared with blue's; null: it had to give none"
    )
    restarts: int
    lost: int
    log: list[DocumentText] = Field(description="the lost server's own last lines")


def target_of(daemon: DaemonView, state: State) -> TargetDocument:
    reading = daemon.readings().get(state.target)
    suggestion = state.suggestion
    ttft = reading.ttft if reading else None
    slo = daemon.slos().get(state.target)
    return TargetDocument(
        name=state.target,
        phase=state.phase,
        mode=state.mode,
        paused=state.paused,
        note=state.note,
        until=state.until,
        slo=slo,
        budget=list(state.budget.burns(slo, daemon.now())) if slo else [],
        servers=_servers(state),
        goodput_rps=reading.goodput_rps if reading else None,
        ttft_p95_s=ttft.p95 if ttft else None,
        reading=reading,
        sources=[
            SourceDocument(source=name, available=source.available, at=source.at, why=source.why)
            for name, source in sorted(daemon.sources().get(state.target, {}).items())
        ],
        suggestion=suggestion.id if suggestion and suggestion.status == "open" else None,
        rollout=state.rollout.id if state.rollout else None,
        outcomes=[_shown(outcome) for outcome in state.outcomes],
    )


def _shown(outcome: Outcome) -> Outcome:
    return replace(outcome, to=masked(outcome.to), before=masked(outcome.before), why=mask(outcome.why))


def _servers(state: State) -> list[ServerDocument]:
    weights = state.route.weights if state.route else {}
    colored: list[tuple[Literal["blue", "green"], Server]] = [
        *(("blue", server) for server in state.fleet),
        *(("green", server) for server in state.newcomers),
    ]
    return [
        ServerDocument(
            name=server.name,
            color=color,
            address=server.address,
            weight=weights.get(server.name),
            ours=server.ours,
            setting=server.setting,
        )
        for color, server in colored
    ]


def _prospect(suggestion: Suggestion) -> PreflightDocument | None:
    found = suggestion.prospect
    if not suggestion.digest:
        return None
    return PreflightDocument(
        strategy=found.strategy,
        why=found.why,
        start_s=found.start_s,
        outage_s=found.outage_s,
        notes=list(found.notes),
    )


def suggestion_of(suggestion: Suggestion) -> SuggestionDocument:
    proposal = suggestion.proposal
    return SuggestionDocument(
        id=suggestion.id,
        target=suggestion.target,
        policy=suggestion.policy,
        rule=proposal.rule,
        klass=proposal.klass,
        before=suggestion.before,
        to=proposal.to,
        why=proposal.why,
        expects=proposal.expects,
        risks=proposal.risks,
        source=proposal.source,
        evidence=list(proposal.evidence),
        mitigation=proposal.mitigation,
        notes=list(suggestion.notes),
        prospect=_prospect(suggestion),
        plan=suggestion.plan,
        forecast=suggestion.forecast,
        base=suggestion.base,
        made_at=suggestion.made_at,
        expires_at=suggestion.expires_at,
        digest=suggestion.digest,
        status=suggestion.status,
        decided_by=suggestion.decided_by,
    )


def tag_of(suggestion: Suggestion) -> dict[str, str]:
    """The ETag header: what an approval must name; none before there is a digest."""
    return {"ETag": f'"{suggestion.digest}"'} if suggestion.digest else {}


def rollout_of(
    state: State | None, target: str, rollout: Rollout, points: Sequence[Point] = ()
) -> RolloutDocument:
    return RolloutDocument(
        id=rollout.id,
        target=target,
        suggestion=rollout.suggestion,
        outcome=rollout.outcome,
        phase=state.phase if state and rollout.ended_at is None else None,
        why=rollout.why,
        strategy=rollout.strategy,
        outage_s=rollout.outage_s,
        plan=rollout.plan,
        step=rollout.step,
        started_at=rollout.started_at,
        phase_since=rollout.phase_since,
        step_since=rollout.step_since,
        ended_at=rollout.ended_at,
        green=_arm(rollout.green),
        blue=_arm(rollout.blue),
        record=_arm(rollout.record),
        exposed=_arm(rollout.exposed),
        bad_exposed=rollout.bad_exposed,
        judged=list(report_evidence(rollout.trial)),
        over_time=list(points),
        valid_s=rollout.trial.valid_s,
        parked=rollout.parked,
        gain=rollout.gain,
        quality=rollout.quality,
        restarts=rollout.restarts,
        lost=rollout.lost,
        log=list(rollout.log),
    )


def _arm(arm: RequestCounts) -> RequestCountsDocument:
    return RequestCountsDocument(
        total=arm.total,
        errors=arm.errors,
        gave_up=arm.gave_up,
        refused=arm.refused,
        ttft_p95_s=quantile(arm.ttft, P95),
        itl_p95_s=quantile(arm.itl, P95),
        e2e_p95_s=quantile(arm.e2e, P95),
    )
