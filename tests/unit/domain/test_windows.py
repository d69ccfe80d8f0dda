"""Windows: periods of days and hours, several schedules, and the days on which clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from flettner.agent.config.windows import parse_period
from flettner.agent.domain.windows import Schedule, Windows

BERLIN = ZoneInfo("Europe/Berlin")


def local(text: str, fold: int = 0) -> datetime:
    """A time in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).astimezone(UTC)


def schedule(*allowed: str, frozen: tuple[str, ...] = ()) -> Schedule:
    return Schedule(
        zone=BERLIN, allowed=tuple(map(parse_period, allowed)), frozen=tuple(map(parse_period, frozen))
    )


@pytest.mark.parametrize(
    ("allowed", "at", "is_open"),
    [
        ("Mon-Fri 09:00-17:00", "2026-11-27 09:00", True),  # a Friday
        ("Mon-Fri 09:00-17:00", "2026-11-27 08:59:59", False),
        ("Mon-Fri 09:00-17:00", "2026-11-27 17:00", False),
        ("Mon-Fri 09:00-17:00", "2026-11-28 12:00", False),
        ("Sat,Sun", "2026-11-28 23:59:59", True),
        ("Sat-Mon", "2026-11-30 12:00", True),
        ("Sat-Mon", "2026-12-01 12:00", False),
        ("Fri 22:00-06:00", "2026-11-28 05:59", True),  # it began on Friday
        ("Fri 22:00-06:00", "2026-11-27 05:59", False),
        ("daily 02:00-05:00", "2026-11-27 03:00", True),
        ("2026-12-24..2027-01-02 08:00-12:00", "2026-12-31 09:00", True),
        ("2026-12-24..2027-01-02 08:00-12:00", "2026-12-31 13:00", False),
        ("2026-12-24", "2026-12-24 00:00", True),
    ],
)
def test_a_period_holds_by_the_wall_clock_of_its_zone(allowed: str, at: str, is_open: bool) -> None:
    assert schedule(allowed).is_open(local(at)) is is_open


def test_a_freeze_closes_what_is_allowed_and_is_over_at_its_end() -> None:
    made = Windows((schedule("Mon-Fri 09:00-17:00", frozen=("2026-12-21..2027-01-05",)),))

    assert not made.is_open(local("2026-12-22 10:00"))
    assert made.opens_at(local("2026-12-18 17:00")) == local("2027-01-06 09:00")
    assert made.describe_closed(local("2026-12-22 10:00")).endswith("they open: Wed 2027-01-06 09:00 CET")


def test_a_rollout_starts_while_the_windows_of_host_and_target_are_open() -> None:
    made = Windows((schedule("daily 08:00-12:00"), schedule("Mon,Fri 10:00-20:00")))

    assert made.opens_at(local("2026-11-27 12:00")) == local("2026-11-30 10:00")
    assert made.opens_at(local("2026-11-27 10:30")) == local("2026-11-27 10:30")
    assert made.closes_at(local("2026-11-27 10:30"), within_s=7200) == local("2026-11-27 12:00")
    assert made.closes_at(local("2026-11-27 10:30"), within_s=3600) is None


def test_windows_that_never_open_are_said_to() -> None:
    made = Windows((schedule("Mon"), schedule("Tue")))

    assert made.opens_at(local("2026-11-27 12:00")) is None
    assert made.describe_closed(local("2026-11-27 12:00")).endswith("none within 400 days")


def test_without_a_period_it_is_always_open() -> None:
    made = Windows((schedule(),))

    assert made.is_open(local("2026-11-27 12:00"))
    assert made.closes_at(local("2026-11-27 12:00"), within_s=1e7) is None


@pytest.mark.parametrize(
    ("allowed", "after", "opens", "closes"),
    [  # on 29 March 2026 the clock goes from 02:00 to 03:00, on 25 October from 03:00 to 02:00
        ("daily 02:30-04:00", "2026-03-29 00:00", "2026-03-29 03:00", "2026-03-29 04:00"),
        ("daily 01:00-02:30", "2026-03-29 00:00", "2026-03-29 01:00", "2026-03-29 03:00"),
        ("daily 02:15-02:45", "2026-03-29 00:00", "2026-03-30 02:15", "2026-03-30 02:45"),
        ("daily 22:00-06:00", "2026-03-28 12:00", "2026-03-28 22:00", "2026-03-29 06:00"),
        ("daily 02:30-04:00", "2026-10-25 00:00", "2026-10-25 02:30", "2026-10-25 04:00"),
    ],
)
def test_clock_changes(allowed: str, after: str, opens: str, closes: str) -> None:
    made = Windows((schedule(allowed),))
    opening = made.opens_at(local(after))

    assert opening == local(opens)
    assert opening is not None
    assert made.closes_at(opening, within_s=86400) == local(closes)


def test_a_time_that_occurs_twice_begins_first_and_ends_second() -> None:
    made = Windows((schedule("daily 02:15-02:45"),))
    opening = made.opens_at(local("2026-10-25 00:00"))

    assert opening == datetime(2026, 10, 25, 0, 15, tzinfo=UTC)
    assert made.closes_at(opening, within_s=86400) == datetime(2026, 10, 25, 1, 45, tzinfo=UTC)


def test_opening_and_closing_agree_with_is_open_over_a_year() -> None:
    made = Windows((schedule("Mon-Fri 01:30-03:10", "Sat 23:00-04:00", frozen=("2026-10-01..2026-10-09",)),))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    while at < datetime(2026, 12, 31, tzinfo=UTC):
        opening = made.opens_at(at)
        assert opening is not None
        assert made.is_open(opening)
        assert opening == at or not made.is_open(opening - timedelta(seconds=1))
        closing = made.closes_at(opening, within_s=86400)
        assert closing is not None
        assert not made.is_open(closing)
        assert made.is_open(closing - timedelta(seconds=1))
        at = closing


@pytest.mark.parametrize(
    "text",
    ["", "Mon 9-17", "Mon 09:00-09:00", "Mon 24:00-25:00", "Mon 09:60-10:00", "Moon", "2026-13-01",
     "2026-12-24..2026-12-01", "Mon-Fri 09:00", "daily,Mon", "Mon  09:00-10:00", "0 9 * * 1-5"],
)  # fmt: skip
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_period(text)
