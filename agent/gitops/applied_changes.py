"""Whether a merged change that another tool or a person applied serves worse than before. Pure.

Such a change has no canary: all servers get it, and nothing runs beside them. So its minutes are compared
with those of the hour before the merge. Load and other changes confound that, which is why a worse result
asks a person for a revert and takes nothing back by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flettner.agent.observe.minute_rows import MINUTE_S, MinuteRow

BEFORE_S = 3600  # that the change is compared with
LEAST_BEFORE = 10  # minutes
SETTLING_S = 300  # since all servers have the values: their caches are cold
LATEST, WORSE = 10, 8  # of the latest minutes that count, so many are worse
JUDGED = 60  # minutes that count, after which a change that is not worse is kept
MARGIN = 0.01  # of the requests, by which a minute is worse than each one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`unknown`: there is too little to compare with."""

    verdict: Literal["open", "worse", "kept", "unknown"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Minute:
    rate_rps: float
    bad: float  # share of its requests that failed or missed an objective


def compare_minutes(rows: Sequence[MinuteRow], merged_at: float, applied_at: float) -> Comparison:
    """Compare the minutes after with those before that were at least as busy.

    `merged_at`, `applied_at`: Unix times, s, of the merge and of all servers having the values.
    """
    before = [_read(row) for row in rows if merged_at - BEFORE_S <= row.at <= merged_at - MINUTE_S]
    known = [minute for minute in before if minute is not None]
    if len(known) < LEAST_BEFORE:
        why = f"{len(known)} minutes of the hour before the merge had requests, {LEAST_BEFORE} are needed"
        return Comparison(verdict="unknown", why=why)
    busiest = max(minute.rate_rps for minute in known)
    worst = max(minute.bad for minute in known)
    after = [_read(row) for row in rows if row.at >= applied_at + SETTLING_S]
    counted = [minute for minute in after if minute is not None and minute.rate_rps <= busiest]
    latest = counted[-LATEST:]
    over = [minute for minute in latest if minute.bad > worst + MARGIN]
    if len(over) < WORSE and len(counted) < JUDGED:
        return Comparison(verdict="open")
    before_it = f"{_mean_bad(known):.1%} in the hour before the merge, at most {worst:.1%} in a minute of it"
    if len(over) < WORSE:
        why = f"{_mean_bad(counted):.1%} of the requests of {len(counted)} minutes were bad, {before_it}"
        return Comparison(verdict="kept", why=why)
    why = (
        f"{_mean_bad(latest):.1%} of the requests of the last {len(latest)} minutes failed or missed an "
        f"objective, {before_it}"
    )
    return Comparison(verdict="worse", why=why)


def _read(row: MinuteRow) -> _Minute | None:
    """None without requests whose outcome is known."""
    if not row.requests_rps or row.attainment is None:
        return None
    return _Minute(row.requests_rps, 1 - row.attainment)


def _mean_bad(minutes: Sequence[_Minute]) -> float:
    """By requests."""
    return sum(minute.bad * minute.rate_rps for minute in minutes) / sum(
        minute.rate_rps for minute in minutes
    )
