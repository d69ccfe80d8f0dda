"""Suggestions: changes that wait for a decision, and for how long policies have proposed something."""

from dataclasses import dataclass, field
from datetime import datetime

from flettner.agent.domain.model import Forecast, Plan, PreflightResult, Proposal
from flettner.agent.domain.statuses import SuggestionStatus
from flettner.vllm_facts.values import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A proposal that passed the guard and is approved by its digest."""

    id: str
    target: str
    policy: str
    proposal: Proposal
    before: Setting  # present values of the changed knobs
    base: str  # digest of the full setting in force
    notes: tuple[str, ...]  # what the guard changed
    made_at: datetime
    expires_at: datetime
    digest: str
    servers: tuple[str, ...] = ()  # the serving servers; with others it is another change
    preflight: PreflightResult = field(default_factory=PreflightResult)
    plan: Plan | None = None  # frozen after the preflight; None before
    forecast: Forecast | None = None
    rate_rps: float | None = None  # requests per second that the plan and the forecast were made for
    refreshed_at: datetime | None = None  # the latest refresh of its numbers; None: as it was made
    changed: str = ""  # what that refresh changed
    window: str = ""  # why it cannot start at once, or may not end in time; empty: it can, and will
    approved_by: str = ""  # waits for the windows to open, or for its turn
    has_turn: bool = False  # the suggestion of another target that it comes after was promoted
    status: SuggestionStatus = "checking"
    decided_by: str = ""

    @property
    def held(self) -> bool:
        """Whether it cannot be approved: what writes the server's manifest would revert the change."""
        return bool(self.preflight.owner)

    @property
    def needs_decision(self) -> bool:
        """Whether it waits for a person: not for a commit, its turn or the windows."""
        return not self.held and not self.approved_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """How long policies have proposed something. Only seconds with fresh metrics and load count."""

    since: datetime  # without a longer gap than a flicker
    seen_at: datetime  # the latest time
    missing_s: int = 0  # seconds without it since then


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions:
    """The suggestions of a target that are not carried out; an approved one is in its rollout."""

    checking: Suggestion | None = None  # the engine runs its preflight
    open: tuple[Suggestion, ...] = ()  # suggestions that need a decision, the most important first
    ended: tuple[Suggestion, ...] = ()  # in the latest step
    last_number: int = 0  # of the last suggestion made

    @property
    def pending(self) -> tuple[Suggestion, ...]:
        """All that have not ended."""
        return (self.checking, *self.open) if self.checking is not None else self.open

    def find_pending(self, id_: str) -> Suggestion | None:
        return next((suggestion for suggestion in self.pending if suggestion.id == id_), None)
