"""When rollouts may start: allowed hours and freezes, by the wall clock of a time zone. Pure.

A time that a change of the clock skips counts as the moment of the change; of one that occurs twice the first
begins a period and the second ends it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Literal
from zoneinfo import ZoneInfo

DAY_MIN = 24 * 60
HORIZON_DAYS = 400  # a window that opens later is as good as none
CHUNK_DAYS = 8  # every weekday
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Hours of some days. `begin`, `end`: minutes after midnight; above 1440 it ends on the next day."""

    weekdays: frozenset[int] = frozenset()  # Monday is 0
    first: date = date.max
    last: date = date.min
    begin: int = 0
    end: int = DAY_MIN

    def begins_on(self, day: date) -> bool:
        return day.weekday() in self.weekdays or self.first <= day <= self.last

    def span(self, day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
        """Its begin and end in UTC, if it begins on this day."""
        return _instant(day, self.begin, zone, fold=0), _instant(day, self.end, zone, fold=1)


def _instant(day: date, minutes: int, zone: ZoneInfo, *, fold: int) -> datetime:
    wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)  # noqa: DTZ001 - a wall clock
    first, second = (wall.replace(tzinfo=zone, fold=side).astimezone(UTC) for side in (0, 1))
    if first <= second:
        return second if fold else first
    span = range(int((first - second).total_seconds() // 60) + 1)  # a skipped time: look for the change
    after = bisect_left(
        span,
        wall,
        key=lambda minute: (second + timedelta(minutes=minute)).astimezone(zone).replace(tzinfo=None),
    )
    return second + timedelta(minutes=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Open in an allowed period, or always without one, except in a frozen one."""

    zone: ZoneInfo
    allowed: tuple[Period, ...] = ()
    frozen: tuple[Period, ...] = ()
    outside: Literal["wait", "refuse"] = "wait"  # what becomes of an approval
    edge: Literal["finish", "roll_back"] = "finish"  # what becomes of a rollout that still runs

    def is_open(self, at: datetime) -> bool:
        today = at.astimezone(self.zone).date()
        days = (today - _DAY, today)

        def holds(period: Period) -> bool:
            spans = (period.span(day, self.zone) for day in days if period.begins_on(day))
            return any(begin <= at < end for begin, end in spans)

        return (not self.allowed or any(map(holds, self.allowed))) and not any(map(holds, self.frozen))

    def next_change(self, at: datetime, *, opens: bool, until: datetime) -> datetime | None:
        """When it next opens, or closes, after `at`; None: not until then."""
        for moment in self._boundaries(at):
            if moment > until:
                return None
            if self.is_open(moment) is opens and self.is_open(moment - timedelta(seconds=1)) is not opens:
                return moment
        return None

    def _boundaries(self, at: datetime) -> Iterator[datetime]:
        """The begins and ends of periods after `at`, in order, up to the horizon."""
        periods = (*self.allowed, *self.frozen)
        today, done = at.astimezone(self.zone).date(), at
        for start in range(0, HORIZON_DAYS if periods else 0, CHUNK_DAYS):
            limit = _instant(today + timedelta(days=start + CHUNK_DAYS), 0, self.zone, fold=0)
            days = [today + timedelta(days=start + number) for number in range(-1, CHUNK_DAYS)]
            spans = [p.span(day, self.zone) for day in days for p in periods if p.begins_on(day)]
            yield from sorted({moment for span in spans for moment in span if done < moment <= limit})
            done = max(done, limit)


@dataclass(frozen=True, slots=True)
class Windows:
    """The schedules of the host and of a target: a rollout starts while all are open."""

    schedules: tuple[Schedule, ...] = ()

    def is_open(self, at: datetime) -> bool:
        return all(schedule.is_open(at) for schedule in self.schedules)

    def refuses(self, at: datetime) -> bool:
        """Whether an approval is refused now, rather than kept until the windows open."""
        return any(s.outside == "refuse" and not s.is_open(at) for s in self.schedules)

    def rolls_back(self, at: datetime) -> bool:
        """Whether a rollout that runs outside of the windows is rolled back now."""
        return any(s.edge == "roll_back" and not s.is_open(at) for s in self.schedules)

    def opens_at(self, at: datetime) -> datetime | None:
        """When a rollout may start, from `at` on; None: not within the horizon."""
        until = at + timedelta(days=HORIZON_DAYS)
        for _ in count():
            closed = [schedule for schedule in self.schedules if not schedule.is_open(at)]
            if not closed:
                return at
            opening = closed[0].next_change(at, opens=True, until=until)
            if opening is None:
                return None
            at = opening
        return None

    def closes_at(self, at: datetime, *, within_s: float) -> datetime | None:
        """When the first of them closes; None: all stay open for so long."""
        until = at + timedelta(seconds=within_s)
        moments = [s.next_change(at, opens=False, until=until) for s in self.schedules]
        return min((moment for moment in moments if moment is not None), default=None)

    def describe(self, moment: datetime | None) -> str:
        """A moment by the wall clock of the target's zone: "Mon 2026-11-30 09:00 CET"."""
        if moment is None:
            return f"none within {HORIZON_DAYS} days"
        return f"{moment.astimezone(self.schedules[-1].zone):%a %Y-%m-%d %H:%M %Z}"

    def describe_closed(self, at: datetime) -> str:
        return f"outside of the windows; they open: {self.describe(self.opens_at(at))}"

    def foresee(self, at: datetime, likely_s: float) -> str:
        """What an approver must know of a rollout that ends within `likely_s` nine times of ten."""
        if not self.is_open(at):
            return self.describe_closed(at)
        closes = self.closes_at(at, within_s=likely_s)
        if closes is None:
            return ""
        end = "rolled back then" if self.rolls_back(closes) else "finished outside of it"
        return (
            f"the window closes at {self.describe(closes)}, and nine of ten such rollouts take less than"
            f" {likely_s:.0f} s: this one may be {end}"
        )
