"""Operators who use the API: they approve suggestions and send adverse requests at bad moments."""

from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from flettner.agent.domain import events as e
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from tests.simulation import api_client
from tests.simulation.process import Daemon
from tests.simulation.scenario import drawn

if TYPE_CHECKING:
    from tests.simulation.history import History

LOOKS_EVERY_S = 1.0
THINKS_S = (8.0, 20.0)  # where several suggestions are open
NOT_SHOWN = "sha256:" + "0" * 64
_KEYS = count()
UNHEARD = frozenset({401, 403, 503})


def new_key() -> str:
    """A new key for each decision of all histories, because they share one API."""
    return f"{next(_KEYS)}"


@dataclass(repr=False, slots=True)
class Operator:
    """Approves open suggestions in any order, each by the digest that was shown first; retries if no response
    arrives. One who thinks for long names the digest of an older version."""

    history: "History"
    random: Random = field(init=False)
    shown: dict[str, tuple[str, float]] = field(default_factory=dict)  # by id: the first digest, and when
    answered: set[str] = field(default_factory=set)  # digests
    latest: Suggestion | None = None

    def __post_init__(self) -> None:
        self.random = drawn("operator", self.history.scenario.seed)

    def look(self) -> None:
        history, now_s = self.history, self.history.loop.now_s
        state = self.state
        if not history.quiet:
            history.loop.outside(LOOKS_EVERY_S, self.look)
        open_ = state.suggestions.open if state else ()
        self._note_latest(state)
        for suggestion in open_:
            thinks_s = self.random.choice(THINKS_S) if history.scenario.several else 0.0
            self.shown.setdefault(suggestion.id, (suggestion.digest, now_s + thinks_s))
        ready = [suggestion for suggestion in open_ if self._is_ready(suggestion, now_s)]
        if history.mode == "auto":
            ready = [suggestion for suggestion in ready if suggestion.proposal.klass == "gated"]
        if ready and history.mode != "advise" and not history.quiet:
            self.decide(self.random.choice(ready))

    def _note_latest(self, state: State | None) -> None:
        if state is None:
            return
        carried_out = (state.rollout.suggestion,) if state.rollout is not None else ()
        seen = (*state.suggestions.pending[:1], *state.suggestions.ended, *carried_out)
        for suggestion in seen:
            if self.latest is None or suggestion.made_at >= self.latest.made_at:
                self.latest = suggestion

    def _is_ready(self, suggestion: Suggestion, now_s: float) -> bool:
        digest, at_s = self.shown[suggestion.id]
        return now_s >= at_s and digest not in self.answered

    def decide(self, suggestion: Suggestion) -> None:
        """Approve what was shown; if that is an older version, look again."""
        digest, _ = self.shown[suggestion.id]
        self.answered.add(digest)
        if digest != suggestion.digest:
            self.history.fired["operator approves an older version"] += 1
            del self.shown[suggestion.id]
        self.approve(suggestion, digest=digest)

    @property
    def state(self) -> State | None:
        daemon = self.history.daemon
        return daemon.state if daemon else None

    def say(self, event: e.Event) -> None:
        """Send an event past the API: the machine must validate it itself."""
        daemon = self.history.daemon
        if daemon is not None:
            self.history.say(f"   a person: {type(event).__name__}")
            daemon.say(event)

    def ask(self, who: str, path: str, body: object, *, key: str = "", digest: str = "") -> None:
        """Send a request through the API with the token of `who`."""
        daemon = self.history.daemon
        if daemon is None:
            return
        key = key or new_key()
        self.history.say(f"   {who}: POST {path}")
        may = self._may(who)
        if digest and may:
            self.history.observer.operator_digests.add(digest)
        on_status = partial(self._answered, daemon, who, path, may=may, digest=digest)
        api_client.ask(daemon, who, path, body, key=key, on_status=on_status)

    def _may(self, who: str) -> bool:
        return who in self.history.principals and api_client.PRINCIPALS[who] != "viewer"

    def _answered(self, daemon: Daemon, who: str, path: str, status: int, *, may: bool, digest: str) -> None:
        """Check a response; a token that is restored while the request is under way may be accepted."""
        what = f"{who}: POST {path}"
        self.history.say(f"   {what}: {status}")
        self.history.observer.answered(what, status, may=may or self._may(who), digest=digest)
        if digest and status in UNHEARD and daemon is self.history.daemon:
            self.answered.discard(digest)

    def approve(self, suggestion: Suggestion, who: str = "alice", key: str = "", digest: str = "") -> None:
        digest, comment = digest or suggestion.digest, "" if who in self.history.principals else "revoked"
        path = f"/v1/suggestions/{suggestion.id}/approve"
        self.ask(who, path, {"digest": digest, "comment": comment}, digest=digest, key=key)

    def do(self, what: str) -> bool:
        """False if the action has no subject."""
        state = self.state
        if state is None:
            return False
        direct = self.history.random.random() < 0.5
        return self._say(what, state) if direct and what in SAYABLE else self._ask(what, state)

    def _ask(self, what: str, state: State) -> bool:
        suggestion, rollout = self._pick(state), state.rollout
        match what:
            case "operator approves twice" if suggestion is not None and suggestion.digest in self._said:
                key = new_key()
                for again in (key, key, new_key()):
                    self.approve(suggestion, key=again)
            case "operator approves what was not shown" if suggestion is not None:
                path = f"/v1/suggestions/{suggestion.id}/approve"
                self.ask("bob", path, {"digest": NOT_SHOWN})
            case "operator denies after approval" if suggestion is not None:
                self.ask("bob", f"/v1/suggestions/{suggestion.id}/deny", {"reason": "no"})
            case "operator aborts" if rollout is not None:
                self.ask("bob", f"/v1/rollouts/{rollout.id}/abort", {"reason": "stop"})
            case "operator pauses":
                self.ask("bob", f"/v1/targets/{state.target}/pause", None)
                resume = partial(self.ask, "bob", f"/v1/targets/{state.target}/resume", None)
                self.history.loop.outside(6.0, resume)
            case "operator asks for a change":
                body = {"to": {"max_num_seqs": 8}, "reason": "8"}
                self.ask("bob", f"/v1/targets/{state.target}/suggestions", body)
            case "operator without the role" if suggestion is not None and suggestion.digest:
                self.approve(suggestion, "victor")
                self.ask("victor", f"/v1/targets/{state.target}/pause", None)
                if rollout is not None:
                    self.ask("victor", f"/v1/rollouts/{rollout.id}/abort", {"reason": "stop"})
            case _:
                return False
        return True

    def _pick(self, state: State) -> Suggestion | None:
        """Any open suggestion, else the one that is checked, else the latest."""
        self._note_latest(state)
        if state.suggestions.open:
            return self.random.choice(state.suggestions.open)
        return state.suggestions.checking or self.latest

    @property
    def _said(self) -> set[str]:
        return self.history.observer.operator_digests

    def _say(self, what: str, state: State) -> bool:
        at, suggestion = self.history.now(), self._pick(state)
        match what:
            case "operator approves twice" if suggestion is not None and suggestion.digest in self._said:
                for _ in range(2):
                    approved = e.Approved(
                        at=at, actor="alice", suggestion=suggestion.id, digest=suggestion.digest
                    )
                    self.say(approved)
            case "operator approves what was not shown" if suggestion is not None:
                self.say(e.Approved(at=at, actor="alice", suggestion=suggestion.id, digest=NOT_SHOWN))
            case "operator denies after approval" if suggestion is not None:
                self.say(e.Denied(at=at, actor="bob", suggestion=suggestion.id, reason="no"))
            case "operator aborts":
                self.say(e.Aborted(at=at, actor="bob", reason="stop"))
            case "operator asks for a change":
                self.say(e.ChangeAsked(at=at, actor="bob", to={"max_num_seqs": 8}, reason="8"))
            case _:
                return False
        return True


SAYABLE = frozenset(
    {
        "operator approves twice",
        "operator approves what was not shown",
        "operator denies after approval",
        "operator aborts",
        "operator asks for a change",
    }
)
