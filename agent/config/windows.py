"""`[windows]` and `[targets.windows]`: the times of the file as schedules."""

import re
from datetime import date
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flettner.agent.config.tables import WindowsTable
from flettner.agent.domain.windows import DAY_MIN, Period, Schedule, Windows
from flettner.agent.plugins.option_errors import quote

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXAMPLES = '"Mon-Fri 09:00-17:00", "daily 22:00-06:00", "2026-12-24" or "2026-12-20..2027-01-06"'
_FORM = re.compile(r"(\S+)(?: (\d\d):([0-5]\d)-(\d\d):([0-5]\d))?")


def parse_period(text: str) -> Period:
    """Parse DAYS, or DAYS HH:MM-HH:MM. Raises ValueError."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be like {EXAMPLES}, not {quote(text)}")
    days, *clock = match.groups()
    hours = [int(digits) for digits in clock if digits is not None] or [0, 0, 24, 0]
    begin, end = 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]
    if begin >= DAY_MIN or end > DAY_MIN or begin == end:
        raise ValueError(f"the hours must be from 00:00 to 24:00, and not empty, not {quote(text)}")
    end += DAY_MIN if end < begin else 0
    try:
        return _parse_days(days, begin, end)
    except ValueError as error:
        raise ValueError(f"must be like {EXAMPLES}, not {quote(text)}: {error}") from None


def _parse_days(days: str, begin: int, end: int) -> Period:
    if days[0].isdigit():
        first, _, last = days.partition("..")
        dates = date.fromisoformat(first), date.fromisoformat(last or first)
        if dates[0] > dates[1]:
            raise ValueError("the range of days is empty")
        return Period(first=dates[0], last=dates[1], begin=begin, end=end)
    if days.lower() == "daily":
        return Period(weekdays=frozenset(range(7)), begin=begin, end=end)
    numbers: set[int] = set()
    for part in days.lower().split(","):
        ends = [WEEKDAYS.index(name) for name in part.split("-")]
        last_day = ends[-1] + (7 if ends[-1] < ends[0] else 0)
        numbers |= {number % 7 for number in range(ends[0], last_day + 1)}
    return Period(weekdays=frozenset(numbers), begin=begin, end=end)


def build_schedule(table: WindowsTable) -> Schedule:
    """Raises ValueError."""
    try:
        zone = ZoneInfo(table.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f'timezone: must be a name like "Europe/Berlin" that this host knows (package tzdata), not'
            f" {quote(table.timezone)}"
        ) from None
    frozen = (*table.frozen, *(day.isoformat() for day in table.holidays))
    return Schedule(
        zone=zone,
        allowed=tuple(map(parse_period, table.allowed)),
        frozen=tuple(map(parse_period, frozen)),
        outside=table.outside,
        edge=table.edge,
    )


def build_windows(host: WindowsTable, target: WindowsTable) -> Windows:
    """A target without a time zone of its own has the host's."""
    if "timezone" not in target.model_fields_set:
        target = target.model_copy(update={"timezone": host.timezone})
    return Windows((build_schedule(host), build_schedule(target)))
