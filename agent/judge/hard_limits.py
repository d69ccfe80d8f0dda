"""Limits outside the statistics, whatever blue does; a violation rolls green back within a second."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from flettner.agent.domain.canary_evidence import (
    CanaryEvidence,
    Counts,
    EvidenceStream,
    Observation,
    UnknownModel,
)
from flettner.agent.domain.model import Slo
from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import wilson_interval
from flettner.agent.judge.canary.clients import ALL, all_of, judged_counts
from flettner.agent.judge.failure_modes import LATENCIES, calibration_of, count_bad, phi_of

REQUESTS, BAD, CONTROL_BAD = 20, 0.5, 0.2  # half of twenty requests are bad while few of blue's are
LATE_AFTER_S = 30.0  # of a step: its first requests come at once and are late
CONTROL_AT_LEAST = 10
CONTROL_HIGH = 1 / 3  # upper bound of blue's bad share
BY_THEMSELVES = ("errors", "stalled")  # streams that need no baseline
UNREACHED = 5
WEDGED_S = 60.0
UNKNOWN_MODEL = 3  # requests; one already is no accident, and keeps green from passing
LOADED_WITHIN = timedelta(seconds=15)
"""An adapter that a client loads at blue in a rollout is seen within 5 s, and then loaded at green."""
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


def count_unknown_models(evidence: CanaryEvidence, observation: Observation) -> CanaryEvidence:
    """Add the requests for models of blue's that green or blue says it does not serve.

    What green refuses while an adapter that is new at blue is loaded there does not count.
    """
    at, counts = observation.at, dict(evidence.unknown_models)
    lacking = dict.fromkeys(observation.lacking, at) | dict(evidence.lacking)
    for name, (green, blue) in observation.unknown_models.items():
        before = counts.get(name, UnknownModel())
        loads = name in lacking and at - lacking[name] < LOADED_WITHIN
        counts[name] = UnknownModel(before.green + (0 if loads else green), before.blue + blue)
    return replace(evidence, unknown_models=counts, lacking=lacking)


def describe_unknown_models(evidence: CanaryEvidence, least: int = 1) -> str:
    """Which model of blue's green has refused in `least` requests or more; empty: none."""
    for name, (refused, by_blue) in evidence.unknown_models.items():
        if refused >= least and not by_blue:
            return f"it answered 404 to {refused} of the requests for {name}, which blue serves"
    return ""


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
    if why := describe_unknown_models(evidence, UNKNOWN_MODEL):
        return why
    return next(_violations(evidence, slo, green, control, alone=alone), "")


def _violations(
    evidence: CanaryEvidence, slo: Slo, green: RequestCounts, control: RequestCounts, *, alone: bool
) -> Iterator[str]:
    """Streams of which half of the requests are bad.

    Late requests come in clumps, and twenty of them may be one pause, so the design effect times as many are
    needed, and only those of admissible seconds count. Without any one group of clients it is so, too.
    """
    well = not control.asked or control.unreached < CONTROL_BAD * control.asked
    if green.unreached >= UNREACHED and green.unreached >= BAD * green.asked and well:
        yield f"{green.unreached} of {green.asked} requests could not reach it"
    for stream in evidence.streams:
        control_of = count_bad(control, stream.name, stream.edge_s, slo, alone=alone)
        whole = Counts(*control_of, *count_bad(green, stream.name, stream.edge_s, slo, alone=alone))
        needed, counted = float(REQUESTS), _of_clients(stream, whole, alone=alone)
        if stream.name in LATENCIES:
            late = evidence.valid_s >= LATE_AFTER_S
            counted = [
                whole._replace(green=every.counted.green if late else 0, green_bad=every.counted.green_bad)
                for every in all_of(stream)
            ]
            needed *= phi_of(calibration_of(evidence.calibration, stream.name, slo))
        if not all(_half_bad(counts, needed) for counts in counted):
            continue
        compared = all(_is_well(counts) for counts in counted)
        if compared or (stream.name in BY_THEMSELVES and whole.control < CONTROL_AT_LEAST):
            compared_with = f"{whole.control_bad} of {whole.control}" if compared else "no baseline"
            bad = f"{counted[0].green_bad} of {counted[0].green}"
            yield f"{stream.name}: {bad} are bad, at least {BAD:.0%}, against {compared_with}"


def _of_clients(stream: EvidenceStream, whole: Counts, *, alone: bool) -> list[Counts]:
    """The counts of all clients, and without each group. `alone`: the control is not of the same seconds."""
    if ALL not in stream.clients:
        return [whole]
    everything, groups = judged_counts(stream)
    every = [everything, *(everything.minus(counts) for counts in groups.values())]
    return (
        [counts._replace(control=whole.control, control_bad=whole.control_bad) for counts in every]
        if alone
        else every
    )


def _half_bad(counts: Counts, needed: float) -> bool:
    return counts.green >= needed and counts.green_bad >= BAD * counts.green


def _is_well(counts: Counts) -> bool:
    """Whether few of the control's requests are bad, of enough of them."""
    _, high = wilson_interval(counts.control_bad, counts.control) or (0.0, 1.0)
    few = counts.control >= CONTROL_AT_LEAST and counts.control_bad < CONTROL_BAD * counts.control
    return few and high < CONTROL_HIGH
