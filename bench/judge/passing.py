"""Section `passing`: requests of green until it is proven not worse, and the error rate of that proof.

Four hours at 2 rps next to 6 rps; green equal to blue, better, and worse by exactly the limit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, log

from bench.judge.hours import finite
from bench.judge.ours import Evidence, independent
from bench.judge.runs import Pool, Row
from bench.judge.traffic import MINUTE, Tick, Traffic, quantiles, seeded, ticks

SURE = log(20.0)  # P(a worse green passes) <= 5 %
FOUR_HOURS = 4 * 60 * MINUTE
SHARE = 0.3  # of the requested runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`limit`: excess that must not pass, twice the margin. `wanted`: median by design."""

    usual: float
    limit: float
    wanted: float
    phi: float = 1.0
    green: float | None = None  # None: the share of blue

    @property
    def name(self) -> str:
        green = "" if self.green is None else f", green {self.green:.1%}"
        return f"blue {self.usual:.0%}{green}, limit {100 * self.limit:g} pp, phi {self.phi:g}"


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(usual=0.01, limit=0.005, wanted=3685),
        Case(usual=0.01, limit=0.01, wanted=967),
        Case(usual=0.01, limit=0.02, wanted=333),
        Case(usual=0.01, limit=0.03, wanted=196),
        Case(usual=0.01, limit=0.01, wanted=2356, phi=2.0),
        Case(usual=0.01, limit=0.01, wanted=5166, phi=4.0),
        Case(usual=0.01, limit=0.02, wanted=749, phi=2.0),
        Case(usual=0.01, limit=0.02, wanted=1518, phi=4.0),
        Case(usual=0.01, limit=0.01, wanted=435, green=0.005),
        Case(usual=0.05, limit=0.005, wanted=15669),
        Case(usual=0.05, limit=0.01, wanted=4336),
        Case(usual=0.05, limit=0.02, wanted=1137),
        Case(usual=0.05, limit=0.03, wanted=550),
    )
}


def passed(name: str, run: int, *, worse: bool) -> float:
    """Return the requests of green until the proof; inf: none in four hours. `worse`: by the limit."""
    case = CASES[name]
    green = case.usual + case.limit if worse else case.usual if case.green is None else case.green
    random = seeded("passing", name, worse, run)
    evidence = Evidence(independent(case.phi), usual=case.usual, margin=case.limit / 2, one_lens=True)
    requests = 0
    for _ in range(FOUR_HOURS // HALF_HOUR):
        made: list[Tick] = ticks(random, Traffic(), [green] * HALF_HOUR, [case.usual] * HALF_HOUR)
        for tick in made:
            evidence.update(tick)
            requests += tick[0][0]
            if evidence.log_not_worse >= SURE:
                return requests
    return inf


HALF_HOUR = 30 * MINUTE


def measure(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    many = max(2, round(runs * SHARE))
    for name, case in CASES.items():
        counts = pool.of(partial(passed, name, worse=False), many)
        row: Row = {
            "runs": many,
            "passed": sum(count < inf for count in counts) / many,
            "requests": finite(quantiles(counts, 0.5, 0.9)),
            "wanted": case.wanted,
        }
        if case.phi == 1 and case.green is None:
            wrong = pool.of(partial(passed, name, worse=True), many)
            row["passed_though_worse"] = sum(count < inf for count in wrong) / many
        yield name, row
