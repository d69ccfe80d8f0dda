"""The JSON documents of the API: the part of the domain values that operators need."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from flettner.agent.api.daemon_view import DaemonView, TargetView, find_warnings
from flettner.agent.audit.history import Point
from flettner.agent.domain.answers import AnswerComparison
from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.cost import Cost, PredictedCost, cost_of_change
from flettner.agent.domain.error_budget import Burn
from flettner.agent.domain.headroom import Headroom
from flettner.agent.domain.model import SERVERS, Evidence, Forecast, Mode, Outcome, Plan, Slo, Strategy
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.request_counts import NO_REQUESTS, RequestCounts, quantile
from flettner.agent.domain.rollout import Canary, Rollout
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.statuses import SuggestionStatus
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.judge.canary.report import (
    EvidenceReport,
    GoodputReport,
    report_evidence,
    report_goodput,
)
from flettner.agent.machine.failover import describe_failover
from flettner.agent.machine.open_suggestions import barred_approver
from flettner.agent.machine.regimes import describe_switching
from flettner.agent.machine.starting import gain_needed
from flettner.agent.machine.transitions import IDLE
from flettner.agent.observe.aggregator import TRAFFIC
from flettner.redaction import mask, masked
from flettner.rules.table import slug_of
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import edit_flags
from flettner.vllm_facts.serve_config import FindingSeverity
from flettner.vllm_facts.values import ChangeClass, Value

P95 = 0.95


DocumentText = Annotated[str, AfterValidator(mask)]  # may quote a server's log or a command line with secrets
Values = Annotated[Mapping[str, Value], AfterValidator(masked)]


class Document(BaseModel):
    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, *values: object, **fields: object) -> Self:
        """The fields that the document shares with the values by name, and the `fields` that it does not."""
        names = cls.model_fields.keys() - fields.keys()
        shared = {name: getattr(value, name) for value in values for name in names if hasattr(value, name)}
        return cls.model_validate({**shared, **fields})


class ServerDocument(Document):
    name: str
    color: Literal["blue", "green"]
    address: str
    weight: int | None = Field(description="percent of the traffic; null before the first split")
    replicas: int = Field(description="equal engines behind its address, such as the pods of a Deployment")
    ours: bool
    failing: DocumentText = Field(description="why the server fails at present; empty: it does not")
    adapters: list[str] = Field(description="LoRA adapters that it lists; read every 5 s, not in advise mode")
    setting: Values
    start: Values = Field(description="`image`, `command` and `env.NAME` that upgrades have set")


class SourceDocument(Document):
    source: str
    available: bool
    at: datetime
    why: DocumentText


class FindingDocument(Document):
    rule: str
    slug: str = Field(description="what the rule says, in a few words; empty for a rule of a third party")
    severity: FindingSeverity
    klass: ChangeClass = Field(serialization_alias="class")
    to: Values = Field(description="the values that the rule would set; empty: none")
    why: DocumentText
    expects: DocumentText
    source: str


class TargetDocument(Document):
    name: str
    phase: Phase | Literal["traffic_lost"] = Field(
        description="without a rollout `traffic_lost`, if the split cannot be kept in force: `note` says why"
    )
    mode: Mode
    paused: bool
    maintenance: bool = Field(description="paused, and a server that exits is not started again")
    note: DocumentText = Field(description="reason for the current state")
    until: datetime | None = Field(description="end of a cool-down, or time of the next attempt")
    slo: Slo | None
    budget: list[Burn] = Field(
        description="the worst objective of the SLO in each window; rate: consumption of its error budget "
        "relative to the allowed rate"
    )
    servers: list[ServerDocument]
    goodput_rps: float | None
    ttft_p95_s: float | None
    reading: Reading | None
    cost: Cost | None = Field(
        description="of the last five minutes; null without a price (`[targets.cost]`) and a power"
    )
    headroom: Headroom | None = Field(
        description="the load that it would carry, beside its peak of the last week, said once a day; null: "
        "the history is shorter than a day, or the capacity is too uncertain"
    )
    switching: DocumentText = Field(
        description="by which approval it switches between which settings, as the load changes; or empty"
    )
    sources: list[SourceDocument]
    suggestion: str | None = Field(description="id of the first suggestion that needs approval")
    suggestions: list[str] = Field(description="ids of all suggestions that need approval, by rank")
    approved: list[str] = Field(
        description="ids of approved suggestions that wait for their turn, or for the windows to open"
    )
    held: list[str] = Field(
        description="ids of suggestions that cannot be approved, as their patch is to be committed, by rank"
    )
    rollout: str | None = Field(description="id of the latest rollout")
    failover: DocumentText = Field(description="which servers fail, and which carry their traffic; or empty")
    waits: DocumentText = Field(description="what the step of a running rollout still lacks; empty: nothing")
    outcomes: list[Outcome] = Field(description="outcomes of earlier changes, oldest first")
    findings: list[FindingDocument] = Field(
        description="what `flettner lint` finds in the flags in force, the most severe first"
    )
    warnings: list[str] = Field(description="faults of the daemon itself that concern every target")


class PreflightDocument(Document):
    strategy: Strategy = Field(
        description="hot: the servers that run take the values; save: some servers stop, the others serve "
        "on; surge: an additional server; replace: servers are replaced one by one; "
        "swap: the only server is replaced, with a planned outage"
    )
    why: DocumentText = Field(description="why this strategy")
    start_s: float | None = Field(description="expected duration of a start; null: unknown")
    outage_s: float = Field(description="duration of the planned outage; 0: none")
    notes: list[DocumentText] = Field(description="warm or cold start, and vLLM's checks of the flags")
    versions: dict[str, list[DocumentText]] = Field(
        description="of an upgrade: present and new version of vLLM and CUDA, where they differ; "
        "an empty text: not known"
    )
    patch: DocumentText = Field(description="change of the manifest, to commit where it is kept; or empty")
    owner: DocumentText = Field(
        description="what writes the manifest: the patch is to be committed; or empty"
    )


class SuggestionDocument(Document):
    id: str
    target: str
    policy: str
    rule: str
    slug: str = Field(description="what the rule says, in a few words; empty for a rule of a third party")
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
        description="changes by the guard, and details of the plan and the preflight; the last one of a "
        "refused, superseded or withdrawn suggestion is the reason"
    )
    plan: Plan | None = Field(description="plan of the rollout; null before the preflight check has ended")
    gain_needed: GainNeeded = Field(
        description="whether it is rolled back without a measurable gain; if_missed: where the SLO is missed"
    )
    forecast: Forecast | None = Field(
        description="time to a verdict at the latest steady rate; null: unknown"
    )
    cost: PredictedCost | None = Field(
        description="predicted cost of a server, now and with the change; null: no price or power is known, "
        "or the change is not predicted"
    )
    preflight: PreflightDocument | None = Field(
        description="result of the engine's preflight check; null before its end, or if it refused"
    )
    command: DocumentText = Field(
        description="command line of the server with the change, without its address, secrets and "
        "environment; empty: it is not open, or no server is known"
    )
    base: str = Field(description="digest of the full setting in force")
    made_at: datetime
    expires_at: datetime = Field(description="a refresh does not extend it: it limits the preflight's age")
    refreshed_at: datetime | None = Field(
        description="latest refresh of its numbers, plan and forecast, which changed the digest; null: none"
    )
    changed: DocumentText = Field(description="what the latest refresh changed")
    digest: str = Field(
        description="digest that an approval must name; empty before the preflight check has ended"
    )
    status: SuggestionStatus = Field(
        description="checking: the preflight check runs, and approval is not possible yet; "
        "refused: by the preflight check; withdrawn: its evidence is gone; superseded: by another one, or "
        "as the servers changed"
    )
    rank: int | None = Field(description="1: the first of the target's open suggestions; null: not open")
    decided_by: str
    approved_by: str = Field(
        description="who approved it, while it waits for its turn, or for the windows to open; or empty"
    )
    after: str = Field(description="suggestion of another target that must be promoted before; or empty")
    barred: str = Field(description="operator who proposed it and may not approve it; empty: all may")


class RequestCountsDocument(Document):
    """Counts of attempts; latencies in seconds."""

    asked: int = Field(description="all attempts, each once")
    total: int = Field(description="answered or failed")
    errors: int = Field(description="failed, cut or aborted")
    stalled: int = Field(
        description="no first token for far longer than promised; slow, not failed; in the total at its end"
    )
    gave_up: int
    refused: int = Field(description="answered 400 to 499; not part of the total")
    ttft_p95_s: float | None
    itl_p95_s: float | None
    e2e_p95_s: float | None


class RolloutDocument(Document):
    id: str
    target: str
    suggestion: str
    outcome: Literal["running", "promoted", "rolled_back"]
    phase: Phase | None = Field(description="the target's phase until the rollout has ended, else null")
    why: DocumentText
    strategy: Strategy
    outage_s: float = Field(description="duration of the planned outage; 0: none")
    plan: Plan
    step: int
    started_at: datetime
    phase_since: datetime
    step_since: datetime | None
    ended_at: datetime | None
    green: RequestCountsDocument = Field(description="this step")
    blue: RequestCountsDocument = Field(description="this step")
    baseline: RequestCountsDocument = Field(description="blue before the canary")
    exposed: RequestCountsDocument = Field(description="green, all steps")
    bad_exposed: int = Field(
        description="failed, stalled, slower than the objective or blue, or refused beyond blue's share of "
        "refusals"
    )
    judged: list[EvidenceReport] = Field(description="the evidence of this step, for each stream of requests")
    goodput: GoodputReport | None = Field(
        description="the evidence of this step on requests that fail or miss an objective; null: none yet"
    )
    over_time: list[Point] = Field(description="the evidence over time; not in lists")
    valid_s: float = Field(description="admissible seconds of this step; seconds on hold are excluded")
    waits: DocumentText = Field(description="what the step still lacks, each with its evidence")
    parked: DocumentText = Field(description="why green is suspended without traffic; empty: it is not")
    failover: DocumentText = Field(description="the same as the target's, while the rollout runs")
    gain: DocumentText = Field(
        description="where green was measurably better; empty: nowhere, or not evaluated yet"
    )
    quality: AnswerComparison | None = Field(
        description="comparison of green's and blue's answers to golden prompts; null: not required"
    )
    restarts: int
    undrained: int = Field(description="requests that servers still had at the end of their drain")
    lost: int = Field(
        description="those of undrained that clients lost, neither answered nor tried elsewhere with success;"
        " all of them where nothing counts requests one by one"
    )
    log: list[DocumentText] = Field(description="the last log lines of the lost server")


def target_of(daemon: DaemonView, target: TargetView, state: State) -> TargetDocument:
    """`state`: the target's, or the one that a decision led to."""
    reading, slo = target.reading, target.slo
    waiting = [made.id for made in state.suggestions.open if made.needs_decision]
    ttft = reading.ttft if reading else None
    lost = _describe_lost_traffic(target)
    return TargetDocument(
        name=state.target,
        phase="traffic_lost" if lost and state.phase in IDLE else state.phase,
        mode=state.mode,
        paused=state.paused,
        maintenance=state.maintenance,
        note="; ".join(filter(None, (lost, state.note, target.progress))),
        until=state.until,
        slo=slo,
        budget=list(state.budget.burns(slo, daemon.now())),
        servers=_servers(state),
        goodput_rps=reading.goodput_rps if reading else None,
        ttft_p95_s=ttft.p95 if ttft else None,
        reading=reading,
        cost=target.spending.cost,
        headroom=target.headroom,
        switching=describe_switching(state),
        sources=[SourceDocument.of(source, source=name) for name, source in sorted(target.sources.items())],
        suggestion=waiting[0] if waiting else None,
        suggestions=waiting,
        approved=[made.id for made in state.suggestions.open if made.approved_by],
        held=[suggestion.id for suggestion in state.suggestions.open if suggestion.held],
        rollout=state.rollout.id if state.rollout else None,
        failover=describe_failover(state),
        waits=_describe_waits(state),
        outcomes=[_shown(outcome) for outcome in state.outcomes],
        findings=[FindingDocument.of(finding, slug=slug_of(finding.rule)) for finding in target.findings],
        warnings=list(find_warnings(daemon.counters())),
    )


def _describe_lost_traffic(target: TargetView) -> str:
    """Why clients may not reach the servers as decided; empty while they do."""
    source = target.sources.get(TRAFFIC)
    return f"traffic lost: {source.why}" if source is not None and not source.available else ""


def _describe_waits(state: State) -> str:
    """What the step of the rollout lacks; empty once a verdict has ended it."""
    return state.rollout.waits if state.rollout and state.phase in {Phase.CANARY, Phase.TRIAL} else ""


def _shown(outcome: Outcome) -> Outcome:
    return replace(outcome, to=masked(outcome.to), before=masked(outcome.before), why=mask(outcome.why))


def _servers(state: State) -> list[ServerDocument]:
    weights = state.split.weights
    return [
        ServerDocument.of(
            server,
            color="blue" if server in state.fleet.servers else "green",
            weight=weights.get(server.name),
            failing=state.failing[server.name].why if server.name in state.failing else "",
            adapters=[adapter.name for adapter in server.adapters],
        )
        for server in state.servers
    ]


def rank_of(suggestion: Suggestion, state: State | None) -> int | None:
    """1 for the first of the open suggestions; None if it is not open."""
    ids = [suggestion.id for suggestion in state.suggestions.open] if state else []
    return ids.index(suggestion.id) + 1 if suggestion.id in ids else None


def suggestion_of(
    suggestion: Suggestion, state: State | None = None, search: ModelSearchResult | None = None
) -> SuggestionDocument:
    """`state`: of its target, for rank and approvers; None: without them. `search`: for the cost."""
    proposal = suggestion.proposal
    return SuggestionDocument.of(
        proposal,
        suggestion,
        slug=slug_of(proposal.rule),
        preflight=PreflightDocument.of(suggestion.preflight) if suggestion.digest else None,
        gain_needed=gain_needed(proposal, suggestion.plan) if suggestion.plan else "never",
        cost=cost_of_change(search, proposal.to),
        command=_command_with(suggestion, state) if state else "",
        rank=rank_of(suggestion, state),
        barred=barred_approver(state, suggestion) if state else "",
    )


def _command_with(suggestion: Suggestion, state: State) -> str:
    """The command line to start by hand; empty where the suggestion is over."""
    blue = state.fleet.blue
    if blue is None or suggestion not in state.suggestions.open or SERVERS in suggestion.proposal.to:
        return ""
    setting = masked({**blue.setting, **suggestion.proposal.to})
    model = setting.pop("model", None)
    try:
        return shlex.join(edit_flags(["vllm", "serve", *([str(model)] if model else [])], setting))
    except FlagError:
        return ""


def tag_of(suggestion: Suggestion) -> dict[str, str]:
    """The ETag header with the digest for an approval; empty before there is a digest."""
    return {"ETag": f'"{suggestion.digest}"'} if suggestion.digest else {}


def rollout_of(
    state: State | None, target: str, rollout: Rollout, points: Sequence[Point] = ()
) -> RolloutDocument:
    live = state if state is not None and rollout.ended_at is None else None
    canary = rollout if isinstance(rollout, Canary) else None
    return RolloutDocument.of(
        rollout.suggestion.preflight,
        rollout,
        target=target,
        suggestion=rollout.suggestion.id,
        phase=live.phase if live else None,
        step=canary.step if canary else 0,
        step_since=canary.step_since if canary else None,
        green=_arm(canary.green_counts if canary else NO_REQUESTS),
        blue=_arm(canary.blue_counts if canary else NO_REQUESTS),
        baseline=_arm(rollout.baseline),
        exposed=_arm(rollout.exposed),
        judged=list(report_evidence(canary.evidence)) if canary else [],
        goodput=report_goodput(canary.evidence) if canary else None,
        over_time=list(points),
        valid_s=canary.evidence.valid_s if canary else 0.0,
        waits=_describe_waits(live) if live else "",
        parked=canary.parked if canary else "",
        failover=describe_failover(live) if live else "",
        gain=canary.gain if canary else "",
        quality=canary.quality if canary else None,
        restarts=canary.restarts if canary else 0,
        undrained=sum(canary.undrained.values()) if canary else 0,
        lost=canary.lost if canary else 0,
        log=list(canary.log) if canary else [],
    )


def _arm(arm: RequestCounts) -> RequestCountsDocument:
    return RequestCountsDocument.of(
        arm,
        ttft_p95_s=quantile(arm.ttft, P95),
        itl_p95_s=quantile(arm.itl, P95),
        e2e_p95_s=quantile(arm.e2e, P95),
    )
