"""Rules that turn audit records and the current states into notices: severity, text, link. Pure.

A notice is sent once for each `id`. Notices that open and that resolve an incident share its `key`, by which
an on-call service opens and closes its own incident. See docs/notifications.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage
from typing import Literal, Protocol, get_args

from flettner.agent.domain.rollout import Canary, Rollout
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.failing import describe_failures
from flettner.agent.machine.failover import describe_failover
from flettner.vllm_facts.values import Setting

NoticeSeverity = Literal["info", "warning", "critical"]
"""`info`: for information, or a decision without urgency. `warning`: act today. `critical`: act now."""
SEVERITIES: tuple[NoticeSeverity, ...] = get_args(NoticeSeverity)

ANCHOR = "audit.anchor"
"""Sent whatever the receiver's minimum severity."""
KINDS: Mapping[str, tuple[NoticeSeverity, str]] = {
    "suggestion.waiting": ("info", "a suggestion waits for approval"),
    "suggestion.expiring": ("warning", "a suggestion still waits after three quarters of its lifetime"),
    "suggestion.decided": (
        "info",
        "a suggestion was approved, denied, refused by the engine, superseded or withdrawn, or it expired",
    ),
    "rollout.started": ("info", "the rollout of an approved change started"),
    "rollout.held": ("warning", "green gets no traffic, because its requests cannot be observed"),
    "rollout.failover": (
        "critical",
        "blue fails, and green, which is not judged yet, carries its traffic: no promotion",
    ),
    "rollout.rolling_back": ("warning", "the change is being rolled back; the text states the reason"),
    "rollout.rolled_back": ("warning", "the change is rolled back: blue has all traffic"),
    "rollout.no_gain": ("info", "the change is rolled back because it has no measurable gain"),
    "rollout.promoted": ("info", "the change is in force"),
    "saving.ended": (
        "warning",
        "the servers that a saving had spared serve again; the text states the reason",
    ),
    "regimes.ended": (
        "warning",
        "settings do not follow the load any more: those from before come back, or the text says why not",
    ),
    "server.failing": ("warning", "a server hangs, refuses connections or fails most of its requests"),
    "target.failing": ("critical", "every server with traffic fails"),
    "target.degraded": ("warning", "one of several servers exited"),
    "target.lost": ("critical", "no server of the setting in force runs"),
    "target.halted": ("critical", "no server could be started; flettner makes no further changes"),
    "target.restored": ("info", "all servers run again"),
    "audit.unwritable": (
        "critical",
        "the audit journal cannot be written: no change starts, rollbacks still run",
    ),
    "audit.writable": ("info", "the audit journal can be written again"),
    "audit.full": (
        "warning",
        "the audit journal reached keep_mb with entries younger than keep: operators' proposals are refused",
    ),
    "audit.has_room": ("info", "the audit journal is smaller than keep_mb again"),
    ANCHOR: ("info", "the head of the audit journal, where `[agent.audit.anchor]` names the receiver"),
    "daemon.restarted": ("info", "a flettner daemon started"),
}
"""Severity of each kind of notice, and its condition."""
RECOVERIES = {"target.restored", "audit.writable", "audit.has_room"}
"""Sent only to receivers that got the notice of the incident."""
EXPIRING_SHARE = 0.75  # of a suggestion's lifetime
REASONED = {"superseded", "withdrawn", "refused"}  # the last note is the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    id: str
    kind: str  # of KINDS
    at: datetime
    title: str  # one line
    text: str = ""
    target: str = ""
    place: str = ""  # in the console: "/suggestions/chat-s3"
    link: str = ""  # the same as a URL, if the console's URL is known
    key: str = ""  # its incident: "chat/rollout"; empty: no incident
    ends: bool = False  # the incident is resolved
    suggestion: str = ""  # its id, where a person can decide about it now
    digest: str = ""  # of that suggestion as it is shown
    decisions: str = ""  # where the receiver's decisions arrive: a path if the console's URL is not known

    @property
    def severity(self) -> NoticeSeverity:
        return KINDS[self.kind][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingNotice:
    """One HTTP POST. URL and headers may contain secrets and are never logged."""

    url: str = field(repr=False)
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


MailSecurity = Literal["starttls", "tls", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMail:
    """Messages, each to one address, for an SMTP server. Neither login nor messages are ever logged."""

    host: str
    port: int
    security: MailSecurity
    login: tuple[str, str] | None = field(repr=False)
    messages: tuple[EmailMessage, ...] = field(repr=False)


class Notifier(Protocol):
    """A module `notifiers/NAME.py`: the request format of one kind of receiver."""

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice | OutgoingMail | None:
        """Build the request; None if this kind of receiver cannot use the notice.

        Secrets are read from their files each time. Raises NoticeError with the file that cannot be read.
        """
        ...


def notices_of_record(action: str, state: State, at: datetime) -> Iterator[Notice]:
    """Build the notices of an audit record with this action and resulting state."""
    rollout = state.rollout
    if action == "daemon.started":
        yield Notice(
            id=f"daemon.restarted/{state.epoch}",
            kind="daemon.restarted",
            at=at,
            title=f"flettner started (epoch {state.epoch})",
            text=f"{state.target}: {state.note}" if state.note else "",
            place="/",
        )
    for suggestion in state.suggestions.ended:
        yield decided_notice(suggestion, at)
    if rollout is not None and action == "suggestion.approved":
        yield decided_notice(rollout.suggestion, at)
    for suggestion in state.suggestions.open:
        yield waiting_notice(state, suggestion, at)
    if rollout is not None:
        yield from _rollout_notices(action, state, rollout, at)
    yield _server_notice(state, at)


def notices_of_states(
    states: Mapping[str, State], at: datetime, *, writable: bool, full: bool
) -> Iterator[Notice]:
    """Build the notices that no record triggers: an expiring suggestion, faults of the audit journal."""
    for state in states.values():
        for suggestion in state.suggestions.open:
            lifetime = suggestion.expires_at - suggestion.made_at
            if not suggestion.approved_by and at - suggestion.made_at >= EXPIRING_SHARE * lifetime:
                yield waiting_notice(state, suggestion, at, "suggestion.expiring")
    yield Notice(
        id="audit.writable" if writable else "audit.unwritable",
        kind="audit.writable" if writable else "audit.unwritable",
        at=at,
        title=f"the audit journal {'can be written again' if writable else 'cannot be written'}",
        text="" if writable else "No change starts until it can. Rollbacks still run.",
        place="/audit",
        key="audit",
        ends=writable,
    )
    yield Notice(
        id="audit.full" if full else "audit.has_room",
        kind="audit.full" if full else "audit.has_room",
        at=at,
        title=f"the audit journal {'is full' if full else 'has room again'}",
        text="Operators' proposals are refused. Raise keep_mb or shorten keep." if full else "",
        place="/audit",
        key="audit/size",
        ends=not full,
    )


def anchor_notice(seq: int, text: str, at: datetime) -> Notice:
    return Notice(id=f"{ANCHOR}/{seq}", kind=ANCHOR, at=at, title=text, place="/audit")


def should_send(notice: Notice, min_severity: NoticeSeverity, sent: Mapping[str, str]) -> bool:
    """Whether a receiver gets the notice. `sent`: ids of sent notices, with the keys of open incidents."""
    incident_sent = bool(notice.key) and notice.key in sent.values()
    if notice.id in sent or (notice.kind in RECOVERIES and not incident_sent):
        return False
    urgent = notice.kind == ANCHOR or SEVERITIES.index(notice.severity) >= SEVERITIES.index(min_severity)
    return urgent or (notice.ends and incident_sent)


def waiting_notice(
    state: State, suggestion: Suggestion, at: datetime, kind: str = "suggestion.waiting"
) -> Notice:
    proposal = suggestion.proposal
    change = describe_changes(suggestion.before, proposal.to)
    until = f"until {suggestion.expires_at:%Y-%m-%d %H:%M} UTC"
    owner = suggestion.preflight.owner
    act = f"for a commit, as {owner} writes the manifest," if owner else "for approval"
    waits = f"waits {act} {until}" if kind == "suggestion.waiting" else f"expires soon: still waits {until}"
    rollout = f" Rollout: {'; '.join(suggestion.notes)}." if suggestion.notes else ""
    is_open = state.mode != "advise" and not suggestion.held and not suggestion.approved_by
    return Notice(
        id=f"{kind}/{suggestion.id}",
        kind=kind,
        at=at,
        title=f"{suggestion.target}: {change} {waits}",
        text=f"{proposal.why}. Expected: {proposal.expects}. Risk: {proposal.risks}.{rollout}",
        target=suggestion.target,
        place=f"/suggestions/{suggestion.id}",
        key=f"{suggestion.target}/suggestion/{suggestion.id}",
        suggestion=suggestion.id if is_open else "",
        digest=suggestion.digest if is_open else "",
    )


def decided_notice(suggestion: Suggestion, at: datetime) -> Notice:
    by = f" by {suggestion.decided_by}" if suggestion.decided_by else ""
    return Notice(
        id=f"suggestion.decided/{suggestion.id}",
        kind="suggestion.decided",
        at=at,
        title=f"{suggestion.target}: suggestion {suggestion.id} was {suggestion.status}{by}",
        text=suggestion.notes[-1] if suggestion.status in REASONED and suggestion.notes else "",
        target=suggestion.target,
        place=f"/suggestions/{suggestion.id}",
        key=f"{suggestion.target}/suggestion/{suggestion.id}",
        ends=True,
    )


def _rollout_notices(action: str, state: State, rollout: Rollout, at: datetime) -> Iterator[Notice]:
    exposed = f"{rollout.exposed.asked} requests were exposed, {rollout.bad_exposed} of them bad"
    if action == "suggestion.approved":
        title = f"rollout {rollout.id} started, approved by {rollout.suggestion.decided_by}"
        yield _rollout("rollout.started", state, rollout, at, title, state.note)
    elif isinstance(rollout, Canary) and rollout.outcome == "running" and rollout.parked:
        title = f"rollout {rollout.id} is suspended: green gets no traffic"
        yield _rollout("rollout.held", state, rollout, at, title, rollout.parked)
    elif action == "rollout.promoted":
        title = f"rollout {rollout.id} is promoted"
        gain = rollout.gain if isinstance(rollout, Canary) else ""
        yield _rollout("rollout.promoted", state, rollout, at, title, gain, ends=True)
    elif action == "saving.ended":
        title = f"the servers that {rollout.id} had spared serve again"
        yield _rollout("saving.ended", state, rollout, at, title, rollout.why, ends=True)
    elif action == "regimes.ended" and state.regimes is not None:
        title = f"settings do not follow the load any more: {state.regimes.id} ended"
        yield _rollout("regimes.ended", state, rollout, at, title, state.regimes.ending, ends=True)
    elif state.phase is Phase.ROLLING_BACK:
        title = f"rollout {rollout.id} is being rolled back"
        yield _rollout("rollout.rolling_back", state, rollout, at, title, rollout.why)
    elif action == "rollout.rolled_back" or (
        action == "server.restored" and rollout.outcome == "rolled_back"
    ):
        no_gain = bool(state.outcomes) and state.outcomes[-1].result == "no_gain"
        kind = "rollout.no_gain" if no_gain else "rollout.rolled_back"
        title = f"rollout {rollout.id} is rolled back; {exposed}"
        yield _rollout(kind, state, rollout, at, title, rollout.why, ends=True)


def _rollout(
    kind: str, state: State, rollout: Rollout, at: datetime, title: str, text: str, *, ends: bool = False
) -> Notice:
    return Notice(
        id=f"{kind}/{rollout.id}",
        kind=kind,
        at=at,
        title=f"{state.target}: {title}",
        text=text,
        target=state.target,
        place=f"/rollouts/{rollout.id}",
        key="" if kind == "rollout.started" else f"{state.target}/rollout",
        ends=ends,
    )


def _server_notice(state: State, at: datetime) -> Notice:
    """Build the one notice on the target's servers: an incident, or its resolution."""
    exited = [server.name for server in state.fleet.servers if server.name in state.fleet.exited]
    weights = state.split.weights
    carry = [name for name, weight in weights.items() if weight] or [
        server.name for server in state.fleet.running
    ]
    green_carries = all(server.name not in carry for server in state.fleet.running)
    failures, failover = describe_failures(state), describe_failover(state)
    if state.phase is Phase.HALTED:
        kind, title = "target.halted", "is halted: no server could be started, an operator must act"
    elif exited and not state.fleet.running:
        kind, title = "target.lost", f"no server runs: {', '.join(exited)} exited"
    elif failures and all(name in state.failing for name in carry):
        kind, title = "target.failing", failures
    elif failover and green_carries:
        kind, title = "rollout.failover", f"green carries the traffic, which is no promotion: {failures}"
    elif exited:
        kind, title = "target.degraded", f"{', '.join(exited)} exited; {len(state.fleet.running)} still run"
    elif any(
        server.name in state.failing for server in state.fleet.running
    ):  # green's are told by its rollback
        kind, title = "server.failing", failures
    else:
        kind, title = "target.restored", "all servers run again"
    return Notice(
        id=f"{kind}/{state.target}",
        kind=kind,
        at=at,
        title=f"{state.target}: {title}",
        text="" if kind == "target.restored" else failover or state.note,
        target=state.target,
        place=f"/targets/{state.target}",
        key=f"{state.target}/servers",
        ends=kind == "target.restored",
    )


def describe_changes(before: Setting, to: Setting) -> str:
    """As `max_num_seqs 8 → 32, enforce_eager True → default`."""
    return ", ".join(f"{knob} {_value(before.get(knob))} → {_value(value)}" for knob, value in to.items())


def _value(value: object) -> str:
    return "default" if value is None else str(value)
