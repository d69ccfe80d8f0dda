"""Limits outside the statistics, whatever blue does; a violation rolls green back within a second."""

from collections.abc import Iterator

from flettner.agent.domain.canary_evidence import NO_COUNTS, CanaryEvidence, Observation
from flettner.agent.domain.model import Slo
from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import wilson_interval
from flettner.agent.judge.failure_modes import LATENCIES, calibration_of, count_bad, phi_of

REQUESTS, BAD, CONTROL_BAD = 20, 0.5, 0.2  # half of twenty requests are bad while few of blue's are
LATE_AFTER_S = 30.0  # of a step: its first requests come at once and are late
CONTROL_AT_LEAST = 10
CONTROL_HIGH = 1 / 3  # upper bound of blue's bad share
BY_THEMSELVES = ("errors", "stalled")  # streams that need no baseline
UNREACHED = 5
WEDGED_S = 60.0
FRESH_S = 10.0  # an older scrape is stale


def is_fresh(engine: EngineLiveness) -> bool:
    """Whether the latest scrape tells of the present."""
    return engine.age_s <= FRESH_S and not engine.lost and not engine.paused


def count_wedged_s(evidence: CanaryEvidence, observation: Observation) -> float:
    """Seconds for which green has run requests without producing a token."""
    engine = observation.green_engine
    if engine is None or engine.age_s > FRESH_S:
        return evidence.wedged_s
    stands = engine.running > 0 and engine.tokens == 0
    return evidence.wedged_s + 1.0 if stands else 0.0


def find_violation(
    evidence: CanaryEvidence,
    observation: Observation,
    *,
    slo: Slo,
    green: RequestCounts,
    control: RequestCounts,
    alone: bool,
) -> str:
    """Why green is rolled back at once; "" if it is not. `green`, `control`: counts of this step.

    `alone`: the control is the baseline, not of the same seconds.
    """
    if observation.green_engine is not None and observation.green_engine.restarted:
        return "its process exited and was started again by something else"
    if evidence.wedged_s >= WEDGED_S:
        return f"it has run requests for {evidence.wedged_s:.0f} s without producing a token"
    return next(_violations(evidence, slo, green, control, alone=alone), "")


def _violations(
    evidence: CanaryEvidence, slo: Slo, green: RequestCounts, control: RequestCounts, *, alone: bool
) -> Iterator[str]:
    """Streams of which half of the requests are bad.

    Late requests come in clumps, and twenty of them may be one pause, so the design effect times as many are
    needed, and only those of admissible seconds count.
    """
    well = not control.asked or control.unreached < CONTROL_BAD * control.asked
    if green.unreached >= UNREACHED and green.unreached >= BAD * green.asked and well:
        yield f"{green.unreached} of {green.asked} requests could not reach it"
    for stream in evidence.streams:
        of, bad = count_bad(green, stream.name, stream.edge_s, slo, alone=alone)
        needed = float(REQUESTS)
        if stream.name in LATENCIES:
            late = stream.counted if evidence.valid_s >= LATE_AFTER_S else NO_COUNTS
            of, bad = late.green, late.green_bad
            needed *= phi_of(calibration_of(evidence.calibration, stream.name, slo))
        control_of, control_bad = count_bad(control, stream.name, stream.edge_s, slo, alone=alone)
        if of < needed or bad < BAD * of:
            continue
        _, high = wilson_interval(control_bad, control_of) or (0.0, 1.0)
        compared = control_of >= CONTROL_AT_LEAST and control_bad < CONTROL_BAD * control_of
        compared = compared and high < CONTROL_HIGH
        if compared or (stream.name in BY_THEMSELVES and control_of < CONTROL_AT_LEAST):
            compared_with = f"{control_bad} of {control_of}" if compared else "no baseline"
            yield f"{stream.name}: {bad} of {of} are bad, at least {BAD:.0%}, against {compared_with}"
