"""Recent suggestions and rollouts in their latest version: read from the journal at start, then updated."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import JournalRecord, parse_state
from flettner.agent.domain.rollout import Canary, Rollout
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.judge.canary.report import report_evidence

MAX_CURVES, MAX_POINTS = 50, 1000  # evidence over time: rollouts, and points of each
MAX_KEPT = 1000  # of each kind; the journal has all
PAGE = 500
REQUESTS = 256  # idempotency keys kept
READ_BACK = 2000  # entries read at start, 1 to 3 s; `flettner audit show` reads all


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The e-values of one second, by stream: (worse, not worse)."""

    at: datetime
    weight: int
    judged: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A request accepted under an idempotency key, and the resulting state."""

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
        for record in _read_recent(journal):
            history.add_request(record)
            state = parse_state(record)
            if state is not None:
                history.add_state(state)
        return history

    def add_request(self, record: JournalRecord) -> None:
        """Keep the seq of an entry that names its request, as `key:hash`."""
        name, _, asked = str(record["after"].get("request", "")).partition(":")
        if asked:
            self._requests[name] = (asked, record["seq"])
        if len(self._requests) > REQUESTS:
            del self._requests[next(iter(self._requests))]

    def find_request(self, name: str) -> tuple[str, int] | None:
        """Return (hash of the request, seq of its entry) for a request accepted before the start."""
        return self._requests.get(name)

    def add_state(self, state: State) -> None:
        """Add a state that was recorded."""
        rollout, suggestions = state.rollout, state.suggestions
        carried_out = (rollout.suggestion,) if rollout is not None else ()
        listed = (*suggestions.ended, *suggestions.pending, *carried_out)
        for suggestion in sorted(listed, key=lambda suggestion: suggestion.made_at):
            self._suggestions[suggestion.id] = suggestion
        self._supersede_unlisted(state)
        if rollout is not None:
            self._rollouts[rollout.id] = (state.target, rollout)
        if isinstance(rollout, Canary):
            self._add_point(rollout)
        limits = ((self._suggestions, MAX_KEPT), (self._rollouts, MAX_KEPT), (self._points, MAX_CURVES))
        for items, limit in limits:
            while len(items) > limit:
                items.pop(next(iter(items)))

    def _add_point(self, canary: Canary) -> None:
        """Add one point for each recorded second of evidence."""
        at = canary.evidence.at
        points = self._points.setdefault(canary.id, deque(maxlen=MAX_POINTS))
        if at is None or (points and points[-1].at >= at):
            return
        judged = {
            account.stream: (account.worse, account.not_worse) for account in report_evidence(canary.evidence)
        }
        points.append(Point(at=at, weight=canary.plan.steps[canary.step].weight, judged=judged))

    def points(self, rollout: str) -> Sequence[Point]:
        """Return the evidence on a rollout over time, oldest first; recent points of recent rollouts."""
        return tuple(self._points.get(rollout, ()))

    def _supersede_unlisted(self, state: State) -> None:
        """Mark the target's suggestions as superseded that are no longer in its state."""
        listed = {suggestion.id for suggestion in state.suggestions.pending}
        for id_, earlier in self._suggestions.items():
            is_open = earlier.status in {"checking", "open"}
            if is_open and earlier.target == state.target and id_ not in listed:
                self._suggestions[id_] = replace(earlier, status="superseded")

    def suggestions(self) -> Sequence[Suggestion]:
        """Newest first."""
        return list(reversed(self._suggestions.values()))

    def rollouts(self) -> Sequence[tuple[str, Rollout]]:
        """(target, rollout), newest first."""
        return list(reversed(self._rollouts.values()))


def _read_recent(journal: Journal) -> Iterator[JournalRecord]:
    seq = max(journal.head.seq - READ_BACK, 0)
    while records := journal.after(seq, PAGE):
        yield from records
        seq = records[-1]["seq"]
