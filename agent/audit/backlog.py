"""Entries of steps that were taken while the journal could not be written, as on a full disk. Pure.

A step that only rolls back may be taken first and recorded late: if the daemon dies in between, the next one
finds a target that is further back than its journal states, which recovery accepts as found. A step forward
must be recorded first: a server or a share of traffic without an entry would be unaccounted for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from flettner.agent.audit.records import JournalEntry
from flettner.agent.domain.effects import (
    Drain,
    Effect,
    KeepAlive,
    KeepKnobs,
    Launch,
    Renewal,
    Retire,
    Route,
    SetKnobs,
)
from flettner.agent.domain.state import Phase, State

MAX_ENTRIES = 500
"""Late entries kept; beyond that only the newest is kept, because it holds the full state."""


def only_rolls_back(before: State, after: State, effects: tuple[Effect, ...]) -> bool:
    """Whether the step only moves toward the servers of the setting in force, as far as they do not fail."""
    if _only_fails_over(before, after, effects):
        return True
    if before.fleet.spared and not after.fleet.spared:  # the end of a saving
        return all(isinstance(effect, Renewal | Route | Launch) for effect in effects)
    ends = before.phase is Phase.ROLLING_BACK and after.phase is Phase.COOLDOWN
    if after.phase is not Phase.ROLLING_BACK and not ends:
        return False
    blue = {server.name for server in before.fleet.servers}
    return all(_rolls_back(effect, blue, before, after) for effect in effects)


def _rolls_back(effect: Effect, blue: set[str], before: State, after: State) -> bool:
    match effect:
        case KeepAlive() | KeepKnobs() | SetKnobs(lease_s=None):  # the values before the trial
            return True
        case Route():
            weights = after.split.planned.weights if after.split.planned else effect.weights
            return _green_share(weights, blue) <= _green_share(_planned(before), blue)
        case Drain() | Retire():
            return effect.server.name not in blue
        case Launch():  # it was stopped to free its capacity, and its name is in the journal
            return effect.server.name in blue and effect.server.name in after.fleet.stopped
        case _:
            return False


def _only_fails_over(before: State, after: State, effects: tuple[Effect, ...]) -> bool:
    """Whether the step only leaves servers that fail, or returns to them; the planned split is the same."""
    routes = all(isinstance(effect, Renewal | Route) for effect in effects)
    same = after.phase is before.phase and _planned(after) == _planned(before)
    return routes and same and after.failing != before.failing


def _planned(state: State) -> Mapping[str, int]:
    """The shares without a failover, by server."""
    return state.split.intended_weights


def _green_share(weights: Mapping[str, int], blue: set[str]) -> int:
    """Share of traffic of the servers that are not blue, percent."""
    return sum(weight for name, weight in weights.items() if name not in blue)


@dataclass(slots=True)
class Backlog:
    """Entries of taken steps that are not written yet, oldest first."""

    entries: list[JournalEntry] = field(default_factory=list)
    left_out: int = 0

    def add(self, entry: JournalEntry) -> None:
        if len(self.entries) >= MAX_ENTRIES:
            self.entries.pop()
            self.left_out += 1
        self.entries.append(entry)

    def next_entry(self, now: datetime) -> JournalEntry | None:
        """Return the next entry to write, marked as late."""
        if not self.entries:
            return None
        entry = self.entries[0]
        late = {"recorded_late": now.isoformat(timespec="milliseconds")}
        if len(self.entries) == 1 and self.left_out:
            late["steps_left_out"] = str(self.left_out)
        return replace(entry, after={**entry.after, **late})

    def drop_first(self) -> None:
        """Remove the first entry, which is on disk now."""
        self.entries.pop(0)
        if not self.entries:
            self.left_out = 0
