"""Section `rollouts`: the full judge, second by second, on all six streams, from 5 % of traffic to parity.

Four servers at 8 rps; green replaces one of them. Of all requests 1 % fail, 1 % are abandoned by the client
and 1 % are refused; 1 % of the responses miss each of three objectives. Green worsens only `errors`; the
other five streams are null. A stall affects all streams.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, lru_cache, partial
from math import inf
from random import Random

from bench.judge.hours import finite
from bench.judge.ours import NOON
from bench.judge.runs import Pool, Row
from bench.judge.traffic import TICK_S, Stalls, poisson, quantiles, seeded, stalled
from flettner.agent.domain.calibration import Calibration, CalibrationWindow
from flettner.agent.domain.canary_evidence import CanaryEvidence, Observation
from flettner.agent.domain.model import Objective, Plan, PreflightResult, Slo, Step
from flettner.agent.domain.request_counts import EMPTY, RequestCounts
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.machine.default_plan import plan_for

SLO = Slo(
    ttft=Objective(under_s=0.5, share=0.99),
    itl=Objective(under_s=0.05, share=0.99),
    e2e=Objective(under_s=10.0, share=0.99),
    errors=0.99,
)
USUAL = 0.01
RPS, SERVERS = 8.0, 4
STARTS_S = 180  # the other servers serve while green starts: the baseline
STEPS = (
    Step(weight=5, requests=20, at_least_s=30.0, at_most_s=600.0),
    Step(weight=50, requests=100, at_least_s=60.0, at_most_s=2700.0),
    Step(weight=100, requests=100, at_least_s=1800.0, at_most_s=7200.0),
)
PLAN = Plan(steps=STEPS, start_s=900.0, warm_up_requests=20, warm_up_s=120.0, drain_s=60.0, lease_s=45.0)
SHARE = 0.2  # of the requested runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`minutes`: duration of the comparison. `errors`: share of green from `onset_s` on."""

    errors: float = USUAL
    onset_s: int = 0
    minutes: int = 60
    stalls: Stalls | None = None


CASES: Mapping[str, Case] = {
    "null": Case(minutes=30),
    "null, stalls of 45 s": Case(minutes=30, stalls=Stalls(3)),
    "null, stalls of 3 min": Case(minutes=30, stalls=Stalls(12)),
    "1 to 3 %": Case(errors=0.03),
    "1 to 5 %": Case(errors=0.05),
    "1 to 10 %": Case(errors=0.10),
    "1 to 50 %": Case(errors=0.50),
    "1 to 10 % at minute 20": Case(errors=0.10, onset_s=1200),
    "1 to 10 %, stalls of 45 s": Case(errors=0.10, stalls=Stalls(3)),
}


@dataclass(slots=True)
class Server:
    """Request outcomes of one server, second by second."""

    random: Random
    stalls: Stalls | None
    ill: bool = False
    _states: Iterator[bool] = field(init=False)
    _until_s: float = 0.0

    def __post_init__(self) -> None:
        self._states = stalled(self.random, self.stalls)

    def arm(self, at_s: float, requests: float, errors: float = USUAL) -> RequestCounts:
        """`requests`: their expected number."""
        if at_s >= self._until_s:
            self.ill, self._until_s = next(self._states), at_s + TICK_S
        of = poisson(self.random, requests)
        gave_up = self._bad(of, USUAL)
        refused = self._bad(of - gave_up, USUAL)
        total = of - gave_up - refused
        failed = self._bad(total, errors)
        late = (self._bad(total - failed, USUAL) for _ in range(3))
        return arm(total, failed, gave_up, refused, *late)

    def _bad(self, of: int, share: float) -> int:
        if self.stalls:
            share = max(share, self.stalls.bad) if self.ill else self.stalls.between(share)
        return sum(self.random.random() < share for _ in range(of)) if of else 0


@cache
def arm(total: int, errors: int, gave_up: int, refused: int, *late: int) -> RequestCounts:
    ok = total - errors
    ttft, itl, e2e = late
    return RequestCounts(
        total=total,
        errors=errors,
        late=min(ok, sum(late)),
        gave_up=gave_up,
        refused=refused,
        over_ttft=ttft,
        over_itl=itl,
        over_e2e=e2e,
        ttft=_spread(ok, ttft, 27, 40),
        itl=_spread(ok, itl, 18, 26),
        e2e=_spread(ok, e2e, 44, 56),
    )


def _spread(of: int, late: int, usual: int, slow: int) -> tuple[int, ...]:
    counts = list(EMPTY)
    counts[usual], counts[slow] = of - late, late
    return tuple(counts)


@lru_cache(maxsize=4)
def learned(stalls: Stalls | None, number: int) -> Mapping[str, Calibration]:
    """Return the calibration after four hours of three servers."""
    random = seeded("known", stalls, number)
    servers = [Server(random, stalls) for _ in range(SERVERS - 1)]
    steadiness, at = CalibrationWindow(), NOON
    for tick in range(round(4 * 3600 / TICK_S)):
        arms = {str(n): server.arm(tick * TICK_S, RPS / SERVERS * TICK_S) for n, server in enumerate(servers)}
        steadiness.add(at, arms)
        at += timedelta(seconds=TICK_S)
    return steadiness.calibrations(at)


@dataclass(slots=True)
class Rollout:
    """One rollout up to parity, where it stays until the rollback or the end of the time."""

    case: Case
    run: int
    evidence: CanaryEvidence = field(init=False)
    requests: int = 0  # of green
    excess: float = 0.0
    passed_s: float = inf  # at parity
    _blue: list[Server] = field(init=False)
    _green: Server = field(init=False)
    _record: RequestCounts = field(init=False)

    def __post_init__(self) -> None:
        random = seeded("rollout", self.case, self.run)
        self.evidence = CanaryEvidence(calibration=learned(self.case.stalls, self.run // 4))
        *self._blue, self._green = [Server(random, self.case.stalls) for _ in range(SERVERS)]
        each = RPS / (SERVERS - 1)
        self._record = sum(
            (server.arm(second, each) for second in range(STARTS_S) for server in self._blue), RequestCounts()
        )

    def back_s(self) -> float:
        """Return the second of the rollback; inf: none."""
        plan = plan_for(PLAN, PreflightResult(strategy="replace"), SERVERS, RPS)
        steps = iter(plan.steps[:-1])
        step, at_s, begun = next(steps), STARTS_S, RequestCounts()
        green = blue = begun
        for second in range(self.case.minutes * 60):
            at_s += 1
            now, beside = self._second(at_s, step.weight / 100, second >= self.case.onset_s)
            green, blue = green + now, sum(beside.values(), blue)
            self.evidence, verdict = AnytimeJudge().update(
                self.evidence,
                step=step,
                slo=SLO,
                observation=Observation(at=NOON + timedelta(seconds=at_s), green=now, blue=beside),
                green=green,
                blue=blue,
                baseline=self._record,
            )
            if verdict.kind == "fail":
                return second + 1
            if verdict.kind == "pass" and step.weight < step.parity:
                step, green, blue = next(steps), begun, begun
                self.evidence = self.evidence.next_step()
            elif verdict.kind == "pass":
                self.passed_s = min(self.passed_s, second + 1)
        return inf

    def _second(self, at_s: int, weight: float, now: bool) -> tuple[RequestCounts, dict[str, RequestCounts]]:
        errors = self.case.errors if now else USUAL
        green = self._green.arm(at_s, RPS * weight, errors)
        self.requests += green.asked
        self.excess += green.total * (errors - USUAL)
        each = RPS * (1 - weight) / (SERVERS - 1)
        return green, {str(number): server.arm(at_s, each) for number, server in enumerate(self._blue)}


def rollout(name: str, run: int) -> tuple[float, float, float, float]:
    """Return the seconds to the rollback and to the pass at parity, requests and excess bad requests."""
    played = Rollout(CASES[name], run)
    back_s = played.back_s()
    return back_s, played.passed_s, played.requests, played.excess


def measure(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    many = max(2, round(runs * SHARE))
    for name, case in CASES.items():
        rows = pool.of(partial(rollout, name), many)
        back = [row for row in rows if row[0] < inf]
        never = [inf] * (many - len(back))
        yield (
            name,
            {
                "runs": many,
                "back": len(back) / many,
                "seconds": finite(quantiles([row[0] - case.onset_s for row in rows], 0.5, 0.9)),
                "requests": finite(quantiles([*(row[2] for row in back), *never], 0.5, 0.9)),
                "excess_bad": finite(quantiles([*(row[3] for row in back), *never], 0.5, 0.9)),
                "passed_at_parity": sum(row[1] < row[0] for row in rows) / many,
                "passed_s": finite(quantiles([row[1] for row in rows], 0.5, 0.9)),
            },
        )
