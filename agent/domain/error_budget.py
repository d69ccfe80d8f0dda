"""The SLO's error budget and its burn rate. Pure.

A burn rate is the share of bad requests over the share that the objective allows: at 1 a budget lasts exactly
for its period. Windows and factors are the paging alerts of the Site Reliability Workbook (chapter 5,
"Alerting on SLOs"): 14.4 over an hour uses 2 % of a month's budget, 6 over six hours 5 %. Each must hold over
a short window too, so that the alarm ends soon after the incident.

Errors and each latency with an objective have a budget of their own. A stalled request is a late first token
when it stalls, and an error only if it fails. Refused and abandoned requests do not count: they may be the
client's mistake or choice. An objective of 100 % has no budget; one that allows much
has no fast burn: 20 % cannot be used up 6 times too fast.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import RequestCounts

SLOT_S = 300
HOUR = 3600 // SLOT_S
HALF_HOUR = HOUR // 2
WINDOWS = {"5m": 1, "30m": HALF_HOUR, "1h": HOUR, "6h": 6 * HOUR}  # slots
ALARMS = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))
LEAST_REQUESTS = 20  # of a window; fewer give no rate

OBJECTIVES = ("errors", "ttft", "itl", "e2e")
FAILURE_PHRASES = {
    "errors": "failed",
    "ttft": "had their first token late",
    "itl": "had their tokens too far apart",
    "e2e": "took too long",
}
WINDOW_NAMES = {"5m": "5 min", "30m": "30 min", "1h": "1 h", "6h": "6 h"}

Slot = tuple[int, int, int, int, int, int]
"""Number of its first five minutes since 1970, requests that were answered, failed or stalled, and the bad
ones of each of OBJECTIVES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """The objective with the highest burn rate in a window that ends now."""

    window: str  # of WINDOWS; the five minutes in which it begins count in full
    objective: str
    rate: float  # 1: exactly the allowed share
    bad: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Counts of the last six hours: of the last hour in slots of five minutes, before in half hours."""

    slots: tuple[Slot, ...] = ()  # oldest first, without slots without requests

    def add(self, at: datetime, arms: Iterable[RequestCounts]) -> "Budget":
        """Add one second's counts of all servers. After a clock was set back the latest slot continues."""
        total = errors = ttft = itl = e2e = 0
        for arm in arms:
            total += arm.served
            errors += arm.errors
            ttft += arm.over_ttft
            itl += arm.over_itl
            e2e += arm.over_e2e
        if not (total or errors):
            return self
        now = _slot_at(at)
        if not self.slots or now > self.slots[-1][0]:
            return replace(self, slots=(*_merged(self.slots, now), (now, total, errors, ttft, itl, e2e)))
        number, a, b, c, d, e = self.slots[-1]
        last = (number, a + total, b + errors, c + ttft, d + itl, e + e2e)
        return replace(self, slots=(*self.slots[:-1], last))

    def burns(self, slo: Slo, at: datetime) -> tuple[Burn, ...]:
        """The burn of each window with enough requests, the shortest window first."""
        by_window = (self._rates(slo, window, at) for window in WINDOWS)
        return tuple(max(rates, key=lambda burn: burn.rate) for rates in by_window if rates)

    def alarm(self, slo: Slo, at: datetime) -> str:
        """A sentence while the budget burns fast, else empty. It changes seldom, as it is journalled."""
        for factor, long, short in ALARMS:
            if not self.slots or self.slots[0][0] >= _slot_at(at) - WINDOWS[short]:
                continue  # the kept counts are shorter than the short window
            slow, fast = (
                {burn.objective for burn in self._rates(slo, window, at) if burn.rate >= factor}
                for window in (long, short)
            )
            for objective, allowed in _allowed_shares(slo).items():
                if objective in slow & fast:
                    windows = f"the last {WINDOW_NAMES[long]} and of the last {WINDOW_NAMES[short]}"
                    return (
                        f"the error budget burns at least {factor:g} times too fast: at least "
                        f"{100 * factor * allowed:.3g} % of the requests of {windows} "
                        f"{FAILURE_PHRASES[objective]}; the SLO allows {100 * allowed:.3g} %"
                    )
        return ""

    def _rates(self, slo: Slo, window: str, at: datetime) -> list[Burn]:
        first = _slot_at(at) - WINDOWS[window]
        inside = [slot for slot in self.slots if slot[0] >= first]
        of = sum(slot[1] for slot in inside)
        if of < LEAST_REQUESTS:
            return []
        bad = {name: min(sum(slot[2 + i] for slot in inside), of) for i, name in enumerate(OBJECTIVES)}
        return [
            Burn(window=window, objective=name, rate=round(bad[name] / of / allowed, 3), bad=bad[name], of=of)
            for name, allowed in _allowed_shares(slo).items()
        ]


def _slot_at(at: datetime) -> int:
    return int(at.timestamp()) // SLOT_S


def _merged(slots: Iterable[Slot], now: int) -> tuple[Slot, ...]:
    """Merge slots older than an hour into half hours; drop those older than all windows."""
    merged: dict[int, Slot] = {}
    for number, *counts in slots:
        begin = number - number % HALF_HOUR if number < now - HOUR else number
        _, a, b, c, d, e = merged.get(begin, (begin, 0, 0, 0, 0, 0))
        total, errors, ttft, itl, e2e = counts
        if begin >= now - max(WINDOWS.values()):
            merged[begin] = (begin, a + total, b + errors, c + ttft, d + itl, e + e2e)
    return tuple(merged.values())


def _allowed_shares(slo: Slo) -> dict[str, float]:
    """The share of requests that may be bad, for each objective that allows any."""
    latencies = {"ttft": slo.ttft, "itl": slo.itl, "e2e": slo.e2e}
    shares = {name: objective.share for name, objective in latencies.items() if objective is not None}
    return {name: 1 - share for name, share in {"errors": slo.errors, **shares}.items() if share < 1}
