"""While the journal cannot be written, as when the disk is full: nothing new, only what takes back. Pure.

A step back may be made first and recorded late: if the daemon dies in between, the next one finds a target
that is further back than its journal says, which recovery takes as it is found. A step on may not: a server
or a share that nobody wrote down would belong to nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from agent.audit.records import JournalEntry
from agent.domain.effects import Drain, Effect, KeepAlive, Launch, Retire, Route
from agent.domain.state import Phase, State

MOST = 500
"""Late entries that are kept; of those beyond only the newest, which holds the whole state."""


def only_rolls_back(before: State, after: State, effects: tuple[Effect, ...]) -> bool:
    """Whether the step only goes back to the servers of the setting in force."""
    ends = before.phase is Phase.ROLLING_BACK and after.phase is Phase.COOLDOWN
    if after.phase is not Phase.ROLLING_BACK and not ends:
        return False
    old = {server.name for server in before.fleet}
    return all(_goes_back(effect, old, before, after) for effect in effects)


def _goes_back(effect: Effect, old: set[str], before: State, after: State) -> bool:
    match effect:
        case KeepAlive():
            return True
        case Route():
            had = before.route.weights if before.route else {}
            return _share(effect.weights, old) <= _share(had, old)
        case Drain() | Retire():
            return effect.server.name not in old
        case Launch():  # it was stopped to make room, and has its name from an entry
            return effect.server.name in old and effect.server.name in after.vacated
        case _:
            return False


def _share(weights: Mapping[str, int], old: set[str]) -> int:
    """What the new servers have of the traffic, percent."""
    return sum(weight for name, weight in weights.items() if name not in old)


@dataclass(slots=True)
class Backlog:
    """Entries of steps that were made and are still to be written, oldest first."""

    entries: list[JournalEntry] = field(default_factory=list)
    left_out: int = 0

    def add(self, entry: JournalEntry) -> None:
        if len(self.entries) >= MOST:
            self.entries.pop()
            self.left_out += 1
        self.entries.append(entry)

    def first(self, now: datetime) -> JournalEntry | None:
        """The next one to write, which says that it is late."""
        if not self.entries:
            return None
        entry = self.entries[0]
        late = {"recorded_late": now.isoformat(timespec="milliseconds")}
        if len(self.entries) == 1 and self.left_out:
            late["steps_left_out"] = str(self.left_out)
        return replace(entry, after={**entry.after, **late})

    def written(self) -> None:
        """The first one is on disk."""
        self.entries.pop(0)
        if not self.entries:
            self.left_out = 0
