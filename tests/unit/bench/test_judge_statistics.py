"""Error rates of the judge on small samples with fixed seeds; `python -m bench.judge` runs large ones."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import exp, inf, log, pi

import pytest

from bench.judge import clients, gains, passing, peers, rollouts
from bench.judge.hours import learned
from bench.judge.ours import SLO, STEP, Evidence, greens, independent, taken_back
from bench.judge.scenarios import DUAL, ONSET, SCENARIOS
from bench.judge.traffic import TICK_S, Stalls, Traffic, quantiles, seeded, ticks
from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, EProcessPair
from flettner.agent.domain.model import Objective
from flettner.agent.domain.request_counts import EMPTY, RequestCounts
from flettner.agent.judge.canary.gain import describe_gain
from flettner.agent.judge.eprocess import RESTART_S, grid, log_factor, nearest, update_with_control
from flettner.agent.judge.failure_modes import calibration_of as learned_of
from flettner.agent.judge.failure_modes import open_streams, tick_phi_of

RUNS = 20


def requests_until_rollback(
    name: str, runs: int = RUNS, *, assumed: Calibration | None = None
) -> list[float]:
    """Return the requests of green until its rollback in each run; inf: none within the hour."""
    scenario = SCENARIOS[name]
    requests = []
    for run in range(runs):
        calibration = assumed or learned(scenario.traffic, run // 10)
        made = ticks(seeded(name, run), scenario.traffic, scenario.green, scenario.blue)
        at = taken_back(Evidence(calibration), made)
        requests.append(inf if at is None else sum(of for of, _ in greens(made)[:at]))
    return requests


def shares() -> Iterator[tuple[float, float]]:
    """Draw pairs of the share of bad control requests and the excess of green under the alternative."""
    yield from product((0.0002, 0.01, 0.1, 0.6), (1.5, 6.0, 40.0))


@pytest.mark.parametrize(("n_b", "n_c"), [(90, 30), (5, 2), (200, 10), (1, 1), (3, 40)])
@pytest.mark.parametrize("d", [0.0025, 0.005, 0.05, 0.2])
def test_no_factor_has_a_mean_above_one_wherever_the_hypothesis_holds(n_b: int, n_c: int, d: float) -> None:
    """The mean of a product of factors of independent binomials, computed exactly."""
    for b, times in shares():
        for c in (min(b + times * d, 0.98), b, 0.5 * b):
            worse = c > b + d
            x = nearest(n_b, n_c, b, c, d)
            for step in range(1, 60):
                q_b = step / 60 * (1 - d)
                for q_c in {q_b + d, 0.5 * (q_b + d)} if worse else {q_b + d, 0.5 * (1 + q_b + d)}:
                    control = q_b * b / x + (1 - q_b) * (1 - b) / (1 - x)
                    green = q_c * c / (x + d) + (1 - q_c) * (1 - c) / (1 - x - d)
                    assert control**n_b * green**n_c <= 1 + 1e-9


def test_the_mixture_equals_the_sum_over_all_start_times() -> None:
    pair, rows, random = (
        EProcessPair(control=2000.0, control_bad=20.0),
        list[list[float]](),
        seeded("mixture"),
    )
    for number, (green, blue) in enumerate(ticks(random, Traffic(servers=1), [0.03] * 90, [0.01] * 90)):
        (of, bad), (n, k) = green, blue[0]
        b = pair.control_bad / pair.control
        at_s = number * TICK_S
        if number % (RESTART_S / TICK_S) == 0:
            rows.append([0.0] * len(grid(0.005)))
        factors = [log_factor((n, k, of, bad), b, b + step, 0.005) / 2.0 for step in grid(0.005)]
        rows = [[old + new for old, new in zip(row, factors, strict=True)] for row in rows]
        weights = [0.5, *(3 / (pi * start) ** 2 for start in range(1, len(rows)))]
        means = [sum(map(exp, row)) / len(row) for row in rows]
        mixed = 1 - sum(weights) + sum(w * mean for w, mean in zip(weights, means, strict=True))

        pair = update_with_control(
            pair, (n, k), (of, bad), margin=0.005, tolerance=0.01, phi=2.0, at_s=at_s, tick_s=TICK_S
        )

        assert pair.log_above == pytest.approx(log(mixed), abs=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "null, iid",
        "null, worse by exactly the margin",
        "null, both drift from 1 to 4 %",
        "null, both at 6 % for 10 min",
        "null, stalls of 15 s",
        "null, stalls of 45 s",
    ],
)
def test_no_good_green_is_rolled_back(name: str) -> None:
    assert set(requests_until_rollback(name, 6)) == {inf}


def test_a_latency_without_an_objective_is_not_assumed_independent() -> None:
    """No request above its edge was counted before, so its calibration has no bad requests."""
    calibrations = dict.fromkeys(("ttft", "e2e"), independent())
    control = rollouts.arm(1000, 0, 0, 0, 0, 0, 0)
    promised, not_promised = (
        {
            stream.name: stream
            for stream in open_streams(
                CanaryEvidence(calibration=calibrations), step=STEP, slo=slo, control=control, margin=0.01
            )
        }
        for slo in (rollouts.SLO, SLO)
    )
    assert learned_of(calibrations, "ttft", rollouts.SLO) is calibrations["ttft"]
    assert learned_of(calibrations, "ttft", SLO) is None
    assert promised["ttft"].ticks is not None
    assert not_promised["ttft"].ticks is None
    assert not_promised["ttft"].margin > promised["ttft"].margin


def test_a_latency_objective_passes_with_half_of_the_allowed_late_requests() -> None:
    slo = replace(rollouts.SLO, ttft=Objective(under_s=0.5, share=0.95))
    control = rollouts.arm(1000, 0, 0, 0, 0, 0, 0)
    streams = open_streams(CanaryEvidence(), step=STEP, slo=slo, control=control, margin=0.01)
    tolerances = {stream.name: stream.tolerance for stream in streams}
    assert tolerances == pytest.approx(dict.fromkeys(tolerances, 0.01) | {"ttft": 0.025})
    assert {stream.margin for stream in streams} == {0.005}


def test_clusters_with_few_observed_ticks_are_assumed_larger() -> None:
    often = replace(independent(), tick_phi=2.0, tick_share=0.12)
    seldom = replace(often, ticks=288)
    assert tick_phi_of(independent()) == 1.0
    assert 2.1 < tick_phi_of(often) < 2.2 < tick_phi_of(seldom) < 2.4


def test_without_the_design_effect_stalls_would_roll_good_greens_back() -> None:
    assert min(requests_until_rollback("null, stalls of 45 s", 10, assumed=independent())) < inf


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("1 to 5%, iid", DUAL["iid"][0.05]),
        ("1 to 10%, iid", DUAL["iid"][0.10]),
        ("1 to 50%, iid", DUAL["iid"][0.50]),
        ("1 to 10%, stalls of 15 s", DUAL["15 s"][0.10]),
    ],
)
def test_a_bad_green_fails_within_the_designed_number_of_requests(name: str, wanted: float) -> None:
    """The median of few runs may exceed the design by half."""
    assert quantiles(requests_until_rollback(name), 0.5)[0] <= 1.5 * wanted


def test_a_late_fault_is_detected_despite_earlier_good_evidence() -> None:
    scenario = SCENARIOS["1 to 10% at minute 30, iid"]
    made = ticks(seeded("late"), scenario.traffic, scenario.green, scenario.blue)
    evidence = Evidence(learned(scenario.traffic, 0))
    at = taken_back(evidence, made)
    assert at is not None
    assert ONSET < at <= ONSET + 16
    assert evidence.log_from_the_start < log(100)


def test_an_equal_green_passes_within_the_designed_number_of_requests() -> None:
    name = passing.Case(usual=0.01, limit=0.02, wanted=333).name
    counts = [passing.passed(name, run, worse=False) for run in range(RUNS)]
    assert quantiles(counts, 0.5)[0] <= 1.5 * 333


def test_few_greens_worse_by_the_margin_pass() -> None:
    """At most 5 % pass: more than 2 of 8 pass with a probability of 1 in 170."""
    name = passing.Case(usual=0.01, limit=0.03, wanted=196).name
    assert sum(passing.passed(name, run, worse=True) < inf for run in range(8)) <= 2


def test_the_judge_rolls_back_a_broken_green_within_a_minute_and_no_equal_one() -> None:
    back_s, _, _, excess = rollouts.rollout("1 to 50 %", 0)
    assert back_s < 60
    assert excess < 20
    assert rollouts.Rollout(rollouts.Case(minutes=4), 1).back_s() == inf


def test_an_equal_green_is_rarely_called_better_and_a_faster_one_is() -> None:
    assert sum(bool(gains.reported_gain("equal", run)) for run in range(4)) <= 1
    assert all(gains.reported_gain("20 % quicker", run) for run in range(2))


def test_only_a_green_that_never_ran_next_to_blue_is_compared_with_the_baseline() -> None:
    evidence = CanaryEvidence(calibration={"errors": independent()})
    ill, well, usual = (rollouts.arm(2000, bad, 0, 0, 0, 0, 0) for bad in (200, 2, 20))
    alone, level = (RequestCounts(), RequestCounts()), (usual, usual)
    assert "requests failed or cut" in describe_gain(evidence, slo=SLO, level=alone, green=well, baseline=ill)
    assert describe_gain(evidence, slo=SLO, level=level, green=well, baseline=ill) == ""
    assert describe_gain(evidence, slo=SLO, level=(well, ill), green=usual, baseline=usual) != ""


def test_a_latency_without_an_objective_must_improve_by_more_than_the_margin() -> None:
    evidence = CanaryEvidence(calibration={"ttft": independent(), "e2e": independent()})
    blue, green = (RequestCounts(total=4000, ttft=spread(slow)) for slow in (1800, 1600))
    assert "first token after" in describe_gain(
        evidence, slo=rollouts.SLO, level=(green, blue), green=RequestCounts(), baseline=RequestCounts()
    )
    assert (
        describe_gain(evidence, slo=SLO, level=(green, blue), green=RequestCounts(), baseline=RequestCounts())
        == ""
    )


def spread(slow: int) -> tuple[int, ...]:
    """Return a histogram of 4,000 first tokens, more than half of them fast."""
    counts = [0] * len(EMPTY)
    counts[20], counts[30] = 4000 - slow, slow
    return tuple(counts)


@cache
def even(share: float, stalls: Stalls | None = None) -> list[tuple[int, int]]:
    traffic = Traffic(stalls=stalls)
    return greens(ticks(seeded("peers", share), traffic, [share] * 240, [share] * 240))


def test_the_compared_tools_follow_their_documentation() -> None:
    assert peers.flagger(1)([(30, 0)] * 8, 0.02) is None
    assert peers.flagger(2)([(30, 3)] * 12, 0.02) == 8
    assert peers.argo([(30, 3)] * 240, 0.02) == 80
    assert peers.limit([(0, 0)] * 4, 0.02, minutes=1, failures=1) == 4
    assert peers.kayenta(even(0.10), even(0.01)) == 40
    assert peers.kayenta(even(0.01), even(0.01)) is None
    assert peers.z_test(even(0.10), even(0.01)) is not None


@pytest.mark.parametrize("does", ["refused", "failing", "leaving", "slow"])
def test_one_client_pinned_to_green_rolls_no_equal_green_back(does: str) -> None:
    back_s, _, _ = clients.rollout(f"equal, 20% {does} at green", run=0)

    assert back_s == inf


def test_a_judge_of_requests_falls_for_one_client() -> None:
    back_s, _, _ = clients.rollout("equal, 5% refused at green, blind", run=0)

    assert back_s < 300


def test_a_client_pinned_to_blue_carries_no_bad_green_through() -> None:
    _, passed_s, _ = clients.rollout("1 to 5 %, 20% failing at blue", run=0)

    assert passed_s == inf


def test_where_all_clients_have_sessions_a_bad_green_is_rolled_back() -> None:
    back_s, _, requests = clients.rollout("1 to 50%, sessions", run=0)

    assert back_s < 120
    assert requests < 500
