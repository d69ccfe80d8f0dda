"""The time of a process follows the wall clock only while nothing waits for a deadline."""

from datetime import UTC, datetime, timedelta

import pytest

from flettner.agent.domain.model import Mode
from flettner.agent.domain.state import Phase, State
from flettner.agent.runtime.process_clock import ProcessClock, is_at_rest

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


class Host:
    """Its wall clock is `set_by` ahead of what has passed since noon."""

    def __init__(self) -> None:
        self.passed_s, self.set_by = 0.0, timedelta()

    def wall(self) -> datetime:
        return NOON + self.set_by + timedelta(seconds=self.passed_s)

    def clock(self) -> ProcessClock:
        return ProcessClock(self.wall, lambda: self.passed_s)


@pytest.mark.parametrize("by", [HOUR, -HOUR, timedelta(days=20_000)])
def test_a_step_waits_until_no_deadline_is_open(by: timedelta) -> None:
    host = Host()
    clock = host.clock()
    host.passed_s, host.set_by = 5.0, by

    lost = clock.follow(at_rest=False)
    host.passed_s = 6.0
    again = clock.follow(at_rest=False)
    before = clock.now()
    back = clock.follow(at_rest=True)

    assert lost
    assert (lost.available, again) == (False, None)
    assert f"by {abs(by).total_seconds():.0f} s" in lost.why
    assert before == NOON + 6 * SECOND
    assert back
    assert (back.available, back.why) == (True, "")
    assert clock.now() == host.wall()


def test_small_differences_are_followed_without_a_word() -> None:
    host = Host()
    clock = host.clock()
    host.set_by = timedelta(milliseconds=300)

    assert clock.follow(at_rest=False) is None
    assert clock.now() == NOON
    assert clock.follow(at_rest=True) is None
    assert clock.now() == host.wall()


@pytest.mark.parametrize(("last", "expected"), [(NOON + HOUR, NOON + HOUR), (NOON - HOUR, NOON)])
def test_a_process_does_not_begin_before_the_last_entry(last: datetime, expected: datetime) -> None:
    clock = Host().clock()

    clock.continue_after(last)

    assert clock.now() == expected


@pytest.mark.parametrize("mode", ["approve", "advise"])
@pytest.mark.parametrize("phase", Phase)
def test_only_phases_without_a_deadline_are_at_rest(phase: Phase, mode: Mode) -> None:
    """Also in advise mode, which suspends a rollout: another mode may go on with it."""
    state = State(target="chat", phase=phase, mode=mode)

    assert is_at_rest(state) == (phase in {Phase.OBSERVING, Phase.PROPOSED, Phase.HALTED})
