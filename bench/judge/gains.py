"""Section `gain`: how often an equal green is called better (5 % by design), and how often a better one.

Twelve minutes at parity with three servers, thirty in the hold step, three of baseline; latencies are
lognormal, TTFT 0.25 s, ITL 20 ms and e2e 3 s as medians. `stalls`: all responses of a stalled server
take three times as long; `busy`: the load changes all latencies of a minute by 20 %.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from random import Random

from bench.judge.ours import NOON
from bench.judge.rollouts import RPS, SERVERS, SLO
from bench.judge.runs import Pool, Row
from bench.judge.traffic import MINUTE, TICK_S, Stalls, poisson, seeded, stalled
from flettner.agent.domain.calibration import Calibration, CalibrationWindow
from flettner.agent.domain.canary_evidence import CanaryEvidence
from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import EDGES_S, EMPTY, RequestCounts
from flettner.agent.judge.canary.gain import describe_gain

MIDDLES_S = {"ttft": (0.25, 0.3), "itl": (0.02, 0.4), "e2e": (3.0, 0.5)}
ERRORS = 0.01
PROMISELESS = Slo(errors=0.99)
SLOW = 3.0
PARITY_TICKS, HOLD_TICKS, RECORD_TICKS = 48, 120, 12
HISTORY_TICKS, RUNS_OF_A_HISTORY = 480, 10
SHARE = 0.4  # of the requested runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`quicker`: latencies of green as a multiple of those of blue."""

    quicker: float = 1.0
    errors: float = ERRORS
    stalls: Stalls | None = None
    busy: float = 0.0
    slo: Slo = SLO


CASES: Mapping[str, Case] = {
    "equal": Case(),
    "equal, stalls of 45 s": Case(stalls=Stalls(3)),
    "equal, busy minutes": Case(busy=0.2),
    "equal, nothing promised": Case(slo=PROMISELESS),
    "equal, nothing promised, stalls of 45 s": Case(slo=PROMISELESS, stalls=Stalls(3)),
    "5 % quicker": Case(quicker=0.95),
    "10 % quicker": Case(quicker=0.9),
    "20 % quicker": Case(quicker=0.8),
    "20 % quicker, stalls of 45 s": Case(quicker=0.8, stalls=Stalls(3)),
    "errors of 1 % halved": Case(errors=0.005),
    "no errors": Case(errors=0.0),
}


def spent(random: Random, requests: float, *, errors: float, times: float, slo: Slo) -> RequestCounts:
    """What one server used in one tick."""
    of = poisson(random, requests)
    failed = sum(random.random() < errors for _ in range(of))
    histograms = {name: list(EMPTY) for name in MIDDLES_S}
    over, late = dict.fromkeys(MIDDLES_S, 0), 0
    promised = {"ttft": slo.ttft, "itl": slo.itl, "e2e": slo.e2e}
    for _ in range(of - failed):
        missed = False
        for name, (middle_s, spread) in MIDDLES_S.items():
            value_s = middle_s * times * random.lognormvariate(0.0, spread)
            histograms[name][bisect_left(EDGES_S, value_s)] += 1
            objective = promised[name]
            if objective is not None and value_s > objective.under_s:
                over[name] += 1
                missed = True
        late += missed
    return RequestCounts(
        total=of,
        errors=failed,
        late=late,
        over_ttft=over["ttft"],
        over_itl=over["itl"],
        over_e2e=over["e2e"],
        ttft=tuple(histograms["ttft"]),
        itl=tuple(histograms["itl"]),
        e2e=tuple(histograms["e2e"]),
    )


def served(
    random: Random, case: Case, ticks: int, rates: Sequence[float], greens: int
) -> list[list[RequestCounts]]:
    """Return the request counts of each server per tick; the first `greens` servers are green."""
    states = [stalled(random, case.stalls) for _ in rates]
    loads = [random.lognormvariate(0.0, case.busy) for _ in range(ticks // MINUTE + 1)]
    return [
        [
            spent(
                random,
                rate * TICK_S,
                errors=case.errors if number < greens else ERRORS,
                times=loads[tick // MINUTE]
                * (SLOW if next(state) else 1.0)
                * (case.quicker if number < greens else 1.0),
                slo=case.slo,
            )
            for number, (rate, state) in enumerate(zip(rates, states, strict=True))
        ]
        for tick in range(ticks)
    ]


@lru_cache(maxsize=4)
def learned(stalls: Stalls | None, busy: float, slo: Slo, number: int) -> Mapping[str, Calibration]:
    """Return the calibration after two hours of four servers."""
    random, case = seeded("gain", stalls, busy, slo, number), Case(stalls=stalls, busy=busy, slo=slo)
    steadiness, at = CalibrationWindow(), NOON
    for arms in served(random, case, HISTORY_TICKS, [RPS / SERVERS] * SERVERS, 0):
        steadiness.add(at, {str(server): arm for server, arm in enumerate(arms)})
        at += timedelta(seconds=TICK_S)
    return steadiness.calibrations(at)


def reported_gain(name: str, run: int) -> str:
    """Return the gain reported by the judge; "" if none."""
    case = CASES[name]
    random = seeded("gain", name, run)
    evidence = CanaryEvidence(calibration=learned(case.stalls, case.busy, case.slo, run // RUNS_OF_A_HISTORY))
    baseline = _sum(served(random, case, RECORD_TICKS, [RPS / (SERVERS - 1)] * (SERVERS - 1), 0))
    beside = served(random, case, PARITY_TICKS, [RPS / SERVERS] * SERVERS, 1)
    level = _sum([arms[:1] for arms in beside]), _sum([arms[1:] for arms in beside])
    green = _sum(served(random, case, HOLD_TICKS, [RPS / SERVERS] * SERVERS, SERVERS))
    return describe_gain(evidence, slo=case.slo, level=level, green=green, baseline=baseline)


def _sum(rows: Sequence[Sequence[RequestCounts]]) -> RequestCounts:
    return sum((arm for arms in rows for arm in arms), RequestCounts())


def measure(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    for name in CASES:
        many = max(2, round(runs * (SHARE if name.startswith("equal") else SHARE / 4)))
        answers = pool.of(partial(reported_gain, name), many)
        measures = Counter(answer.split(":")[1] for answer in answers if answer)
        yield (
            name,
            {"runs": many, "called_better": sum(map(bool, answers)) / many, "said": dict(measures)},
        )
