"""The suggestions and rollouts of late, latest version of each: read from the journal once, then kept."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from agent.audit.journal import Journal
from agent.audit.records import JournalRecord, parse_state
from agent.domain.state import Rollout, State, Suggestion
from agent.judge.report import accounts

CURVES, POINTS = 50, 1000  # of the evidence over time: rollouts, and points of each
KEPT = 1000  # of each kind; the journal has them all
PAGE = 500
REQUESTS = 256  # that a repeat is known by
READ_BACK = 2000  # entries, at a start: 1 to 3 s; `trimtab audit show` reads them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The e-values of one second, by stream: worse, not worse."""

    at: datetime
    weight: int
    judged: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What a person asked for with a key, and the state that it led to."""

    asked: str  # hash of the request
    state: State


@dataclass(slots=True)
class History:
    _suggestions: dict[str, Suggestion] = field(default_factory=dict)
    _rollouts: dict[str, tuple[str, Rollout]] = field(default_factory=dict)
    _points: dict[str, deque[Point]] = field(default_factory=dict)
    _requests: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, journal: Journal) -> "History":
        history = cls()
        for record in _pages(journal):
            history.recall(record)
            state = parse_state(record)
            if state is not None:
                history.hear(state)
        return history

    def recall(self, record: JournalRecord) -> None:
        """Take the number of an entry that says which request it came of: `name:hash`."""
        name, _, asked = str(record["after"].get("request", "")).partition(":")
        if asked:
            self._requests[name] = (asked, record["seq"])
        if len(self._requests) > REQUESTS:
            del self._requests[next(iter(self._requests))]

    def request(self, name: str) -> tuple[str, int] | None:
        """(hash of what was asked, number of the entry) of one that was accepted before the start."""
        return self._requests.get(name)

    def hear(self, state: State) -> None:
        """Take a state that was written down."""
        if state.suggestion is not None:
            self._close_before(state.suggestion)
            self._suggestions[state.suggestion.id] = state.suggestion
        if state.rollout is not None:
            self._rollouts[state.rollout.id] = (state.target, state.rollout)
            self._note(state.rollout)
        for kept, most in ((self._suggestions, KEPT), (self._rollouts, KEPT), (self._points, CURVES)):
            while len(kept) > most:
                kept.pop(next(iter(kept)))

    def _note(self, rollout: Rollout) -> None:
        """One point for each second of evidence that was written down."""
        at = rollout.trial.at
        points = self._points.setdefault(rollout.id, deque(maxlen=POINTS))
        if at is None or (points and points[-1].at >= at):
            return
        judged = {account.stream: (account.worse, account.not_worse) for account in accounts(rollout.trial)}
        points.append(Point(at=at, weight=rollout.plan.steps[rollout.step].weight, judged=judged))

    def points(self, rollout: str) -> Sequence[Point]:
        """How the evidence on a rollout grew, oldest first; the latest ones of the latest rollouts."""
        return tuple(self._points.get(rollout, ()))

    def _close_before(self, latest: Suggestion) -> None:
        """A target has one suggestion at a time: one that waited when another followed was superseded."""
        for id_, earlier in self._suggestions.items():
            waits = earlier.status in {"checking", "open"}
            if waits and earlier.target == latest.target and id_ != latest.id:
                self._suggestions[id_] = replace(earlier, status="superseded")

    def suggestions(self) -> Sequence[Suggestion]:
        """Newest first."""
        return list(reversed(self._suggestions.values()))

    def rollouts(self) -> Sequence[tuple[str, Rollout]]:
        """(target, rollout), newest first."""
        return list(reversed(self._rollouts.values()))


def _pages(journal: Journal) -> Iterator[JournalRecord]:
    seq = max(journal.head.seq - READ_BACK, 0)
    while records := journal.after(seq, PAGE):
        yield from records
        seq = records[-1]["seq"]
