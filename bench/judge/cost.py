"""Section `cost`: CPU time of the seconds in which the judge closes a tick of all streams in both lenses.

Four streams, and all six.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from time import thread_time_ns

from bench.judge import rollouts
from bench.judge.ours import NOON, independent
from bench.judge.runs import Row
from bench.judge.traffic import quantiles, seeded
from flettner.agent.domain.canary_evidence import CanaryEvidence, Observation
from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import EMPTY, RequestCounts
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.judge.failure_modes import ANSWERS

STEP = Step(weight=25, requests=100, at_least_s=60.0, at_most_s=1e9, parity=25)
FOUR = Slo(ttft=rollouts.SLO.ttft, errors=0.99)  # e2e has neither an objective nor a baseline


def seconds_ms(slo: Slo, ticks: int) -> tuple[int, list[float]]:
    """Return the number of streams, and the cost of each second in which both lenses closed a tick."""
    random = seeded("cost")
    green, *blue = [rollouts.Server(random, None) for _ in range(4)]
    spread = dict.fromkeys((*ANSWERS, "ttft", "itl", "e2e"), independent())
    evidence, green_total, blue_total = CanaryEvidence(calibration=spread), RequestCounts(), RequestCounts()
    baseline, spent, second = _with_objectives(blue[0].arm(0.0, 2000.0), slo), list[float](), 0
    judge = AnytimeJudge()
    while len(spent) < ticks:
        second += 1
        now = _with_objectives(green.arm(second, 2.0), slo)
        by_server = {
            str(number): _with_objectives(server.arm(second, 2.0), slo) for number, server in enumerate(blue)
        }
        green_total, blue_total = green_total + now, sum(by_server.values(), blue_total)
        observed = Observation(at=NOON + timedelta(seconds=second), green=now, blue=by_server)
        begun = thread_time_ns()
        evidence, _ = judge.update(
            evidence,
            step=STEP,
            slo=slo,
            observation=observed,
            green=green_total,
            blue=blue_total,
            baseline=baseline,
        )
        spent_ms = (thread_time_ns() - begun) / 1e6
        if evidence.wide_s == evidence.tick_s == 0.0 and evidence.all_s:
            spent.append(spent_ms)
    return len(evidence.streams), spent


def _with_objectives(arm: RequestCounts, slo: Slo) -> RequestCounts:
    return arm if slo.e2e else replace(arm, itl=EMPTY, e2e=EMPTY, over_itl=0, over_e2e=0)


def measure(ticks: int) -> Iterator[tuple[str, Row]]:
    for slo in (FOUR, rollouts.SLO):
        streams, spent = seconds_ms(slo, ticks)
        p50, p99 = quantiles(spent, 0.5, 0.99)
        yield f"{streams} streams", {"ticks": len(spent), "p50_ms": round(p50, 3), "p99_ms": round(p99, 3)}
