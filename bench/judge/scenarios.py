"""The streams of an hour, by name, and the expected verdict of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.judge.traffic import MINUTE, Stalls, Traffic

HOUR = 60 * MINUTE
GOOD = (0.01,) * HOUR
ONSET = HOUR // 2
INCIDENT = range(20 * MINUTE, 30 * MINUTE)
STALLS = {"15 s": Stalls(1), "45 s": Stalls(3), "3 min": Stalls(12)}
RARE_BASE = 0.0026  # between stalls, for a mean of 1 % and stalls for 5 % of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`limit`: limit set in the compared tools. `wanted_*`: share of rollbacks; requests of green until
    then (median, 90 %); minutes after the onset. `runs`: share of the requested runs."""

    name: str
    green: Sequence[float]
    blue: Sequence[float] = GOOD
    traffic: Traffic = field(default_factory=Traffic)
    limit: float = 0.02
    runs: float = 1.0
    null: bool = False
    onset: int | None = None
    wanted_share: float | None = None
    wanted_median: float | None = None
    wanted_minutes: float | None = None


def constant(share: float) -> tuple[float, ...]:
    return (share,) * HOUR


def _nulls() -> list[Scenario]:
    drift = tuple(0.01 + 0.03 * tick / (HOUR - 1) for tick in range(HOUR))
    incident = tuple(0.06 if tick in INCIDENT else 0.01 for tick in range(HOUR))
    scenarios = [
        Scenario(name="null, iid", green=GOOD, null=True),
        Scenario(name="null, worse by exactly the margin", green=constant(0.015), null=True),
        Scenario(name="null, both drift from 1 to 4 %", green=drift, blue=drift, null=True),
        Scenario(name="null, both at 6 % for 10 min", green=incident, blue=incident, null=True),
    ]
    for name, stalls in STALLS.items():
        traffic = Traffic(stalls=stalls)
        scenarios.append(Scenario(name=f"null, stalls of {name}", green=GOOD, traffic=traffic, null=True))
    for name in ("15 s", "45 s"):
        traffic = Traffic(stalls=STALLS[name])
        title = f"null, worse by the margin, stalls of {name}"
        scenarios.append(Scenario(name=title, green=constant(0.015), traffic=traffic, null=True))
    for name, stalls in STALLS.items():
        traffic = Traffic(stalls=stalls, blue_rps=2.0, servers=1)
        scenarios.append(
            Scenario(name=f"null, one blue, stalls of {name}", green=GOOD, traffic=traffic, null=True)
        )
    return scenarios


LIMITS = {0.03: 0.02, 0.05: 0.03, 0.10: 0.05, 0.50: 0.05}
DUAL: Mapping[str, Mapping[float, float]] = {
    "iid": {0.03: 1827, 0.05: 473, 0.10: 134, 0.50: 30},
    "15 s": {0.03: 1756, 0.05: 674, 0.10: 266, 0.50: 61},
    "45 s": {0.03: 3808, 0.05: 1426, 0.10: 620, 0.50: 174},
    "3 min": {0.10: 1751, 0.50: 539},
}
"""Median requests of green until its rollback, in the simulation of the design."""
LATE = {("iid", 0.05): 6.0, ("iid", 0.10): 1.5, ("45 s", 0.10): 8.2, ("45 s", 0.05): 18.8}
"""Median minutes after the onset, in the simulation of the design."""


def _worse() -> list[Scenario]:
    scenarios = [
        Scenario(
            name=f"1 to {share:.0%}, {_named(kind)}",
            green=constant(share),
            traffic=Traffic(stalls=STALLS.get(kind)),
            limit=LIMITS[share],
            runs=0.4,
            wanted_median=median,
            wanted_share=0.894 if (kind, share) == ("45 s", 0.03) else 0.999,
        )
        for kind, medians in DUAL.items()
        for share, median in medians.items()
    ]
    more = Stalls(3, share=0.32)
    clumped = Scenario(
        name="1 to 5 %, only as more stalls of 45 s",
        green=constant(more.share * more.bad + (1 - more.share) * RARE_BASE),
        traffic=Traffic(stalls=STALLS["45 s"], green_stalls=more),
        limit=0.03,
        runs=0.4,
        wanted_share=0.675,
    )
    return [*scenarios, clumped]


def _late() -> list[Scenario]:
    return [
        Scenario(
            name=f"1 to {share:.0%} at minute 30, {_named(kind)}",
            green=(*GOOD[:ONSET], *constant(share)[ONSET:]),
            traffic=Traffic(stalls=STALLS.get(kind)),
            limit=LIMITS[share],
            runs=0.4,
            onset=ONSET,
            wanted_minutes=minutes,
        )
        for (kind, share), minutes in LATE.items()
    ]


def _named(kind: str) -> str:
    return kind if kind == "iid" else f"stalls of {kind}"


def _by_name(scenarios: Sequence[Scenario]) -> Mapping[str, Scenario]:
    return {scenario.name: scenario for scenario in scenarios}


NULLS, WORSE, LATER = _by_name(_nulls()), _by_name(_worse()), _by_name(_late())
SCENARIOS = {**NULLS, **WORSE, **LATER}
