"""What of an audit record, and of this moment, a person should hear, how urgent it is, where to look. Pure.

A notice has an `id`: who was told once is not told again. One about trouble has a `key`, and so has the one
that says that it is over: an on-call service opens and closes its incident by it. docs/notifications.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, get_args

from agent.domain.state import Phase, Rollout, State, Suggestion

NoticeSeverity = Literal["info", "warning", "critical"]
"""`info`: to know, or to decide in one's own time. `warning`: today. `critical`: now."""
SEVERITIES: tuple[NoticeSeverity, ...] = get_args(NoticeSeverity)

KINDS: Mapping[str, tuple[NoticeSeverity, str]] = {
    "suggestion.waiting": ("info", "a suggestion waits for a person"),
    "suggestion.expiring": ("warning", "it still waits, and three quarters of its time are over"),
    "suggestion.decided": (
        "info",
        "it was approved, denied, refused by the engine, superseded, or it expired",
    ),
    "rollout.started": ("info", "an approved change is being carried out"),
    "rollout.held": ("warning", "green waits without traffic, because nothing can be seen of it"),
    "rollout.rolling_back": ("warning", "the change is being taken back, and why"),
    "rollout.rolled_back": ("warning", "the change is taken back: blue has all traffic"),
    "rollout.no_gain": ("info", "it is taken back because it gained nothing measurable"),
    "rollout.promoted": ("info", "the change is in force"),
    "target.degraded": ("warning", "one of several servers has ended"),
    "target.lost": ("critical", "no server of the setting in force is left"),
    "target.halted": ("critical", "no server could be started; trimtab changes nothing any more"),
    "target.restored": ("info", "every server is back"),
    "audit.unwritable": ("critical", "the audit cannot be written: nothing new starts, only what takes back"),
    "audit.writable": ("info", "the audit is written again"),
    "daemon.restarted": ("info", "a trimtab daemon has started"),
}
"""Of each kind of notice its severity, and when it is sent."""
RECOVERIES = {"target.restored", "audit.writable"}
"""Told only to who was told of the trouble."""
LATE = 0.75  # of a suggestion's life
DECIDED = {"approved", "denied", "expired", "superseded", "refused"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    id: str
    kind: str  # of KINDS
    at: datetime
    title: str  # one line
    text: str = ""
    target: str = ""
    place: str = ""  # in the console: "/suggestions/chat-s3"
    link: str = ""  # the same as a URL, where the console's is known
    key: str = ""  # what trouble it is about: "chat/rollout"; empty: none that could end
    ends: bool = False  # that trouble is over

    @property
    def severity(self) -> NoticeSeverity:
        return KINDS[self.kind][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingNotice:
    """One HTTP POST. Its URL and headers may be secrets: they are never shown."""

    url: str = field(repr=False)
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Notifier(Protocol):
    """A module `notifiers/NAME.py`: how one kind of receiver wants to be told."""

    def post(self, notice: Notice, at: datetime) -> OutgoingNotice | None:
        """None: it cannot use such a notice. Reads secrets from their files each time.

        Raises NoticeError, naming the file, when that cannot be.
        """
        ...


def of_record(action: str, state: State, at: datetime) -> Iterator[Notice]:
    """What an audit record with this action, which led to this state, has to say."""
    subject, rollout = state.suggestion, state.rollout
    if action == "daemon.started":
        yield Notice(
            id=f"daemon.restarted/{state.epoch}",
            kind="daemon.restarted",
            at=at,
            title=f"trimtab has started (epoch {state.epoch})",
            text=f"{state.target}: {state.note}" if state.note else "",
            place="/",
        )
    if subject is not None and action.removeprefix("suggestion.") in DECIDED:
        yield _decided(subject, at)
    if subject is not None and subject.status == "open":
        yield _waiting(subject, at, "suggestion.waiting")
    if rollout is not None:
        yield from _of_rollout(action, state, rollout, at)
    yield _of_servers(state, at)


def of_moment(states: Mapping[str, State], at: datetime, *, writable: bool) -> Iterator[Notice]:
    """What no record says: time passes, and the audit itself fails."""
    for state in states.values():
        waits = state.suggestion
        if waits is not None and waits.status == "open":
            life = waits.expires_at - waits.made_at
            if at - waits.made_at >= LATE * life:
                yield _waiting(waits, at, "suggestion.expiring")
    yield Notice(
        id="audit.writable" if writable else "audit.unwritable",
        kind="audit.writable" if writable else "audit.unwritable",
        at=at,
        title="the audit is written again" if writable else "the audit cannot be written",
        text="" if writable else "nothing new starts until it can; what takes a change back still runs",
        place="/audit",
        key="audit",
        ends=writable,
    )


def wanted(notice: Notice, least: NoticeSeverity, told: Mapping[str, str]) -> bool:
    """Whether to tell who wants `least` and above. `told`: ids told so far, and the keys of open trouble."""
    heard_of_it = bool(notice.key) and notice.key in told.values()
    if notice.id in told or (notice.kind in RECOVERIES and not heard_of_it):
        return False
    urgent = SEVERITIES.index(notice.severity) >= SEVERITIES.index(least)
    return urgent or (notice.ends and heard_of_it)


def _waiting(subject: Suggestion, at: datetime, kind: str) -> Notice:
    change = ", ".join(
        f"{knob} {_value(subject.before.get(knob))} → {_value(value)}"
        for knob, value in subject.proposal.to.items()
    )
    until = f"until {subject.expires_at:%Y-%m-%d %H:%M} UTC"
    waits = f"waits for you {until}" if kind == "suggestion.waiting" else f"still waits, {until} only"
    return Notice(
        id=f"{kind}/{subject.id}",
        kind=kind,
        at=at,
        title=f"{subject.target}: {change} {waits}",
        text=f"{subject.proposal.why}. Expected: {subject.proposal.expects}. Risk: {subject.proposal.risks}.",
        target=subject.target,
        place=f"/suggestions/{subject.id}",
        key=f"{subject.target}/suggestion",
    )


def _decided(subject: Suggestion, at: datetime) -> Notice:
    by = f" by {subject.decided_by}" if subject.decided_by else ""
    return Notice(
        id=f"suggestion.decided/{subject.id}",
        kind="suggestion.decided",
        at=at,
        title=f"{subject.target}: suggestion {subject.id} was {subject.status}{by}",
        target=subject.target,
        place=f"/suggestions/{subject.id}",
        key=f"{subject.target}/suggestion",
        ends=True,
    )


def _of_rollout(action: str, state: State, rollout: Rollout, at: datetime) -> Iterator[Notice]:
    served = f"{rollout.exposed.asked} requests were exposed, {rollout.bad_exposed} of them bad"
    if action == "suggestion.approved":
        by = f", approved by {state.suggestion.decided_by}" if state.suggestion else ""
        yield _rollout(
            "rollout.started", state, rollout, at, f"rollout {rollout.id} has started{by}", state.note
        )
    elif rollout.outcome == "running" and rollout.parked:
        title = f"rollout {rollout.id} is held: green waits without traffic"
        yield _rollout("rollout.held", state, rollout, at, title, rollout.parked)
    elif action == "rollout.promoted":
        title = f"rollout {rollout.id} is promoted"
        yield _rollout("rollout.promoted", state, rollout, at, title, rollout.gain, ends=True)
    elif state.phase is Phase.ROLLING_BACK:
        title = f"rollout {rollout.id} is being taken back"
        yield _rollout("rollout.rolling_back", state, rollout, at, title, rollout.why)
    elif action == "rollout.rolled_back" or (
        action == "server.restored" and rollout.outcome == "rolled_back"
    ):
        useless = bool(state.outcomes) and state.outcomes[-1].result == "no_gain"
        kind = "rollout.no_gain" if useless else "rollout.rolled_back"
        title = f"rollout {rollout.id} is taken back; {served}"
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


def _of_servers(state: State, at: datetime) -> Notice:
    """One for each target at any time: the trouble, or that there is none."""
    ended = [server.name for server in state.fleet if server.name in state.gone]
    if state.phase is Phase.HALTED:
        kind, title = "target.halted", "is halted: no server could be started, a person must look"
    elif ended and not state.standing:
        kind, title = "target.lost", f"no server is left: {', '.join(ended)} ended"
    elif ended:
        kind, title = "target.degraded", f"{', '.join(ended)} ended; {len(state.standing)} still serve"
    else:
        kind, title = "target.restored", "every server is back"
    return Notice(
        id=f"{kind}/{state.target}",
        kind=kind,
        at=at,
        title=f"{state.target}: {title}",
        text="" if kind == "target.restored" else state.note,
        target=state.target,
        place=f"/targets/{state.target}",
        key=f"{state.target}/servers",
        ends=kind == "target.restored",
    )


def _value(value: object) -> str:
    return "default" if value is None else str(value)
