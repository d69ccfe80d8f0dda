"""People: they approve what is shown, and at the worst moment something else."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent import events as e
from agent.state import State, Suggestion

if TYPE_CHECKING:
    from tests.simulation.history import History

LOOKS_EVERY_S = 1.0
NOT_SHOWN = "0" * 64


@dataclass(repr=False, slots=True)
class Operator:
    """Approves every open suggestion once, about a second after it is shown."""

    history: "History"
    answered: str = ""

    def look(self) -> None:
        history = self.history
        state = self.state
        if not history.quiet:
            history.loop.outside(LOOKS_EVERY_S, self.look)
        suggestion = state.suggestion if state else None
        if suggestion is None or suggestion.status != "open" or suggestion.digest == self.answered:
            return
        self.answered = suggestion.digest
        if history.mode == "approve" and not history.quiet:
            self.approve(suggestion)

    @property
    def state(self) -> State | None:
        daemon = self.history.daemon
        return daemon.state if daemon else None

    def say(self, event: e.Event) -> None:
        daemon = self.history.daemon
        if daemon is not None:
            self.history.say(f"   a person: {type(event).__name__}")
            daemon.say(event)

    def approve(self, suggestion: Suggestion) -> None:
        self.history.observer.said.add(suggestion.digest)
        self._approve(suggestion, suggestion.digest)

    def _approve(self, suggestion: Suggestion, digest: str) -> None:
        at = self.history.loop.wall()
        self.say(e.Approved(at=at, actor="alice", suggestion=suggestion.id, digest=digest))

    def do(self, what: str) -> bool:
        """False: there is nothing that it could be done about."""
        at, state = self.history.loop.wall(), self.state
        suggestion = state.suggestion if state else None
        if state is None:
            return False
        match what:
            case "operator approves twice" if suggestion is not None and suggestion.digest:
                if suggestion.digest in self.history.observer.said:
                    self._approve(suggestion, suggestion.digest)
                    self._approve(suggestion, suggestion.digest)
                    return True
                return False
            case "operator approves what was not shown" if suggestion is not None:
                self._approve(suggestion, NOT_SHOWN)
            case "operator denies after approval" if suggestion is not None:
                self.say(e.Denied(at=at, actor="bob", suggestion=suggestion.id, reason="no"))
            case "operator aborts":
                self.say(e.Aborted(at=at, actor="bob", reason="stop"))
            case "operator pauses":
                self.say(e.Paused(at=at, actor="bob"))
                self.history.loop.outside(6.0, lambda: self.say(e.Resumed(at=at, actor="bob")))
            case "operator asks for a change":
                self.say(e.ChangeAsked(at=at, actor="bob", to={"max_num_seqs": 8}, reason="8"))
            case _:
                return False
        return True
