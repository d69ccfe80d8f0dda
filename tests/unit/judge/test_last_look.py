"""At the time limit of a step a new release gets one look at what is still undecided."""

from dataclasses import replace
from random import Random

import pytest

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, Counts, EvidenceStream
from flettner.agent.domain.model import Objective, Slo, Step
from flettner.agent.domain.request_counts import NO_REQUESTS
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary.last_look import look_at_limit
from flettner.simulator.text import draws

PARITY = Step(weight=50, requests=100, at_least_s=60.0, at_most_s=5400.0)
HOLD = replace(PARITY, weight=100, parity=50)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95))
LATE = EvidenceStream(name="ttft", edge_s=0.5, promised=0.05, usual=0.07, margin=0.0175, tolerance=0.035)
FAILED = EvidenceStream(name="errors", usual=0.002, margin=0.005, tolerance=0.01)
WAITS = Verdict(kind="wait", why="", lacks_proof_of=("errors", "ttft"))


def spread(phi: float) -> Calibration:
    return Calibration(phi=phi, tick_edge=0.2, tick_share=0.15, tick_phi=1.0, tick_requests=50.0, ticks=900)


def look(
    *counted: tuple[EvidenceStream, Counts], verdict: Verdict = WAITS, phi: float = 80.0, step: Step = PARITY
) -> Verdict:
    streams = tuple(replace(stream, counted=counts) for stream, counts in counted)
    calibration = {"ttft": spread(phi), "errors": spread(2.0)}
    evidence = CanaryEvidence(streams=streams, calibration=calibration, valid_s=5400.0)
    return look_at_limit(verdict, evidence, step=step, slo=SLO, baseline=NO_REQUESTS)


def test_where_both_stall_alike_it_passes_and_says_what_is_not_excluded() -> None:
    verdict = look((FAILED, Counts(21_000, 45, 21_000, 40)), (LATE, Counts(21_000, 1470, 21_000, 1600)))

    assert verdict.kind == "pass"
    assert "1,600 of 21,000 requests with a first token after 500 ms, blue: 1,470 of 21,000" in verdict.why
    assert "up to 4.4 points more than blue's are not excluded" in verdict.why


@pytest.mark.parametrize(
    ("counted", "phi"),
    [
        (Counts(21_000, 1470, 21_000, 2500), 80.0),  # 5 points more late ones
        (Counts(21_000, 1470, 21_000, 1470), 400.0),  # equal, but anything may hide in such clumps
        (Counts(100, 0, 100, 0), 80.0),
        (Counts(), 80.0),
    ],
)
def test_it_stays_undecided_where_twice_as_many_late_requests_are_not_excluded(
    counted: Counts, phi: float
) -> None:
    assert look((FAILED, Counts(21_000, 45, 21_000, 40)), (LATE, counted), phi=phi) == WAITS


@pytest.mark.parametrize(
    ("bad", "kind"), [(11, "pass"), (62, "wait"), (120, "fail")], ids=["as blue", "0.9 points", "2 points"]
)
def test_of_failed_requests_no_more_pass_than_the_tolerance(bad: int, kind: str) -> None:
    verdict = look((FAILED, Counts(5400, 11, 5400, bad)), verdict=replace(WAITS, lacks_proof_of=("errors",)))

    assert verdict.kind == kind


def test_what_lacks_more_than_a_proof_does_not_pass_but_may_be_worse() -> None:
    lacks_requests = Verdict(kind="wait", why="green has answered 90 of 100 requests")
    equal, worse = Counts(5400, 11, 5400, 11), Counts(5400, 11, 5400, 140)

    assert look((FAILED, equal), verdict=lacks_requests) == lacks_requests
    assert "140 of 5,400 requests failed" in look((FAILED, worse), verdict=lacks_requests).why


@pytest.mark.parametrize("kind", ["pass", "fail", "inadmissible", "futile"])
def test_any_other_verdict_stays(kind: str) -> None:
    verdict = Verdict(kind=kind, why="")  # type: ignore[arg-type]

    assert look((FAILED, Counts(5400, 11, 5400, 140)), verdict=verdict) == verdict


@pytest.mark.parametrize(("late", "kind"), [(0.07, "pass"), (0.14, "pass"), (0.4, "fail")])
def test_in_the_hold_step_the_baseline_is_the_limit(late: float, kind: str) -> None:
    verdict = look(
        (LATE, Counts(0, 0, 21_000, round(21_000 * late))),
        verdict=replace(WAITS, lacks_proof_of=("ttft",)),
        step=HOLD,
    )

    assert verdict.kind == kind


def test_the_requests_of_each_group_of_clients_may_be_left_out() -> None:
    counts = Counts(21_000, 1470, 21_000, 1500)
    one_client_hid_it = replace(LATE, counted=Counts(21_000, 1470, 10_000, 1800))
    stream = replace(LATE, without={"3": one_client_hid_it})

    assert look((stream, counts)).kind == "wait"


def test_of_equal_releases_that_stall_nearly_all_pass_and_of_twice_as_late_ones_hardly_any() -> None:
    """Stalls of 3 to 8 s each minute for 90 min, 4 requests/s on each side; phi as blue's hours have it."""
    passed = {1.0: 0, 2.0: 0}
    for often, seed in ((often, seed) for often in passed for seed in range(100)):
        random = draws(seed, "stalls", often)

        def late(times: float, random: Random = random) -> int:
            at_s, count = 0.0, 0.0
            while (at_s := at_s + random.expovariate(times / 55.0)) < 5400.0:
                count += 4.0 * random.uniform(3.0, 8.0)
            return round(count)

        counted = Counts(21_600, late(1.0), 21_600, late(often))
        verdict = look((LATE, counted), verdict=replace(WAITS, lacks_proof_of=("ttft",)), phi=60.0)
        passed[often] += verdict.kind == "pass"

    assert passed[1.0] >= 97
    assert passed[2.0] <= 5
