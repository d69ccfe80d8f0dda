"""Outside of the windows nothing starts, and what runs ends as configured."""

from dataclasses import replace
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

import pytest

from flettner.agent.config.windows import parse_period
from flettner.agent.domain import events as e
from flettner.agent.domain.state import Phase
from flettner.agent.domain.windows import Schedule, Windows
from flettner.agent.machine.step import Machine
from tests.support.machine_stories import NOON, World, rules

TUESDAY = parse_period("Tue 12:10-12:11")  # ten minutes after the start of a story
CLOSED = Schedule(zone=ZoneInfo("UTC"), allowed=(TUESDAY,))


def world(*schedules: Schedule, **more: object) -> World:
    made = World(machine=Machine(replace(rules(), windows=Windows(schedules))), **more)  # type: ignore[arg-type]
    assert made.at.astimezone(UTC).strftime("%a %H:%M") == "Tue 12:00"
    return made.start()


def until_noon(minutes: int, *, edge: str = "finish") -> Schedule:
    """Open for so many minutes."""
    end = NOON + timedelta(minutes=minutes)
    return Schedule(
        zone=ZoneInfo("UTC"),
        allowed=(parse_period(f"daily 11:00-{end:%H:%M}"),),
        edge=edge,  # type: ignore[arg-type]
    )


def test_an_approval_outside_waits_and_starts_exactly_this_version_when_they_open() -> None:
    here = world(CLOSED).until("proposed")
    (shown,) = here.state.suggestions.open
    here.approve()

    assert here.state.phase is Phase.PROPOSED
    assert "they open: Tue 2030-01-01 12:10 UTC" in here.state.note
    assert "they open: Tue 2030-01-01 12:10 UTC" in shown.notes[-1]
    here.tick(500)
    (waiting,) = here.state.suggestions.open
    assert (waiting.digest, waiting.approved_by) == (shown.digest, "alice")
    here.tick(120)
    assert here.state.rollout is not None
    assert here.state.rollout.suggestion.digest == shown.digest
    assert here.state.rollout.suggestion.decided_by == "alice"
    assert here.state.rollout.started_at >= NOON + timedelta(minutes=10)


def test_an_approval_that_waits_needs_no_further_evidence_and_can_be_denied() -> None:
    here = world(CLOSED).until("proposed").approve()
    (waiting,) = here.state.suggestions.open
    here.waiting = 0
    here.tick(400)
    assert here.state.suggestions.open == (waiting,)

    here.feed(e.Denied(at=here.at, actor="bob", suggestion=waiting.id, reason="no"))
    here.tick(400)

    assert here.state.rollout is None


def test_a_paused_target_does_not_start_what_waited() -> None:
    here = world(CLOSED).until("proposed").approve()
    here.feed(e.Paused(at=here.at, actor="bob"))
    here.tick(630)
    assert here.state.rollout is None


def test_an_approval_outside_is_refused_with_the_time_where_configured() -> None:
    here = world(replace(CLOSED, outside="refuse")).until("proposed").approve()
    (shown,) = here.state.suggestions.open

    assert shown.approved_by == ""
    assert "was not approved" in here.state.note
    assert "12:10 UTC; approve it then" in here.state.note
    here.tick(630)
    assert here.state.rollout is None


def test_auto_mode_starts_nothing_outside() -> None:
    here = world(CLOSED, mode="auto")
    here.tick(590)
    assert here.state.rollout is None
    here.tick(40)
    assert here.state.rollout is not None


@pytest.mark.parametrize("edge", ["finish", "roll_back"])
def test_a_canary_at_the_edge_is_finished_or_rolled_back(edge: str) -> None:
    here = world(until_noon(2, edge=edge)).until("proposed").approve().until("canary")
    here.silent = True  # no verdict before the edge
    here.at = NOON + timedelta(minutes=2)
    here.tick(2)

    if edge == "finish":
        assert here.state.phase is Phase.CANARY
        return
    here.until("cooldown")
    assert here.state.rollout is not None
    assert (here.state.rollout.outcome, here.state.rollout.why) == (
        "rolled_back",
        "the window closed before the rollout ended",
    )
    assert [outcome.result for outcome in here.state.outcomes] == ["undecided"]


@pytest.mark.parametrize(("edge", "starts"), [("finish", True), ("roll_back", False)])
def test_auto_mode_starts_nothing_that_would_be_cut_off(edge: str, starts: bool) -> None:
    here = world(until_noon(1, edge=edge), mode="auto", at=NOON + timedelta(seconds=50)).tick(6)

    assert (here.state.rollout is not None) is starts


@pytest.mark.parametrize(
    ("edge", "end"), [("finish", "finished outside of it"), ("roll_back", "rolled back then")]
)
def test_who_approves_is_told_that_the_window_is_too_short(edge: str, end: str) -> None:
    here = world(until_noon(1, edge=edge), at=NOON + timedelta(seconds=50)).until("proposed")

    assert here.state.suggestions.open[0].notes[-1] == (
        "the window closes at Tue 2030-01-01 12:01 UTC, and nine of ten such rollouts take less than 8 s:"
        f" this one may be {end}"
    )
    early = world(until_noon(1, edge=edge)).until("proposed").state.suggestions.open[0]
    assert "window" not in " ".join(early.notes)
