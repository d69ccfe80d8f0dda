"""The ways in which a request can be bad, each a stream of its own: what counts, and with which margin.

A latency is late above its objective, whatever blue does: where blue misses it, green must do better to pass,
so an equally late green is not excused (docs/decisions/0004). Without an objective, late is `UNPROMISED`
times blue's 90th percentile: only a green that much slower is worse. An ITL without an objective is not
judged: larger batches trade it for TTFT, and its cost shows in e2e. Nor is e2e for a change that takes less
hardware where the first token and the next ones are promised: that it is slower was approved. An edge is
fixed before the first count above it.

Requests above an edge without an objective are not counted before the rollout, so their clumping is unknown.
Treating them as independent rolled back 89 of 150 equal greens where servers stall for 45 s. So a latency
without an objective has DEFAULT_PHI, and a margin of half of the tenth that would make green's 90th
percentile `UNPROMISED` times the control's.

Two margins: a green that is proved worse by more than `margin` is rolled back; one that is worse by
`tolerance` passes with a chance of at most 1 in 20. The second is twice the first, or half of the late
requests that the SLO allows if that is more: an objective of 95 % allows 5 %, so the tolerance is 2.5 points.
A smaller one would take thousands of requests to prove where latencies clump, and end undecided.
"""

from collections.abc import Iterator, Mapping
from math import exp, floor, lgamma, log, sqrt

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, EProcessPair, EvidenceStream
from flettner.agent.domain.model import Objective, Slo, Step
from flettner.agent.domain.request_counts import RequestCounts, count_above, quantile

ANSWERS = ("errors", "stalled", "gave_up", "refused")
LATENCIES = ("ttft", "itl", "e2e")
UNPROMISED, DISASTER = 3.0, 0.05  # times the control's 90th percentile; margin
LEAST_CONTROL = 10  # requests; fewer are no baseline
PRIOR = 2000.0  # requests that the baseline counts as at most
TICK_PRIOR = 600.0
DEFAULT_PHI = 4.0  # without a calibration (canary.md 4.3)
UNKNOWN = 0.01  # the control's bad share without a baseline


def objective_of(slo: Slo, name: str) -> Objective | None:
    objectives = {"ttft": slo.ttft, "itl": slo.itl, "e2e": slo.e2e}
    return objectives.get(name)


def stream_names(slo: Slo) -> tuple[str, ...]:
    """All streams that a rollout under this SLO can have."""
    return tuple(n for n in (*ANSWERS, *LATENCIES) if n != "itl" or slo.itl is not None)


def count_bad(
    arm: RequestCounts, name: str, edge_s: float | None, slo: Slo, *, alone: bool = False
) -> tuple[int, int]:
    """(requests, bad requests) by this stream's measure.

    `alone`: without a control of the same seconds. Then a request that stalls in a queue that advances is
    late, not stalled: the baseline of a minute may end before the same queue has grown.
    """
    if name == "errors":
        return arm.total, arm.errors
    if name == "stalled":
        return arm.served, arm.stalled - (arm.queued if alone else 0)
    if name == "gave_up":
        return arm.served + arm.gave_up, arm.gave_up
    if name == "refused":
        return arm.asked, arm.refused
    histogram: tuple[int, ...] = getattr(arm, name)
    objective = objective_of(slo, name)
    if edge_s is None:
        return 0, 0
    if objective is not None and edge_s == objective.under_s:
        exact: int = getattr(arm, f"over_{name}")
        return sum(histogram), exact
    bad, of = count_above(histogram, edge_s)
    return of, bad


def open_streams(
    evidence: CanaryEvidence, *, step: Step, slo: Slo, control: RequestCounts, margin: float
) -> tuple[EvidenceStream, ...]:
    """The streams, plus those that can be judged from now on.

    `control`: all counts of blue so far. `margin`: a green that is worse by this share of the requests or
    more must not pass; see the module's docstring for the exceptions.
    """
    opened = {stream.name for stream in evidence.streams}
    new = (
        _stream(name, edge_s, slo=slo, control=control, margin=margin, calibration=evidence.calibration)
        for name, edge_s in _edges(step, slo, control)
        if name not in opened and not (evidence.promised_only and _is_unpromised(slo, name))
    )
    return (*evidence.streams, *new)


def _is_unpromised(slo: Slo, name: str) -> bool:
    return name in LATENCIES and objective_of(slo, name) is None


def _edges(step: Step, slo: Slo, control: RequestCounts) -> Iterator[tuple[str, float | None]]:
    yield from ((name, None) for name in ANSWERS)
    if step.weight < step.parity:
        return  # below parity green is faster than it will be
    for name in LATENCIES:
        histogram: tuple[int, ...] = getattr(control, name)
        objective = objective_of(slo, name)
        usual_s = quantile(histogram, 0.9) if sum(histogram) >= LEAST_CONTROL else None
        if objective is not None:
            yield name, objective.under_s
        elif usual_s is not None and name != "itl":
            yield name, usual_s * UNPROMISED


def _stream(
    name: str,
    edge_s: float | None,
    *,
    slo: Slo,
    control: RequestCounts,
    margin: float,
    calibration: Mapping[str, Calibration],
) -> EvidenceStream:
    objective, spread = objective_of(slo, name), calibration_of(calibration, name, slo)
    promised = 1 - objective.share if objective else 1 - slo.errors if name == "errors" else None
    of, bad = count_bad(control, name, edge_s, slo)
    usual = bad / of if of >= LEAST_CONTROL else promised if promised is not None else UNKNOWN
    prior = min(max(float(of), 2 * LEAST_CONTROL), PRIOR)
    ticks = EProcessPair(control=TICK_PRIOR, control_bad=spread.tick_share * TICK_PRIOR) if spread else None
    least = max(margin / 2, usual / 4, DISASTER if name in LATENCIES and objective is None else 0.0)
    return EvidenceStream(
        name=name,
        edge_s=edge_s,
        promised=promised,
        usual=usual,
        margin=least,
        tolerance=max(2 * least, (1 - objective.share) / 2 if objective else 0.0),
        requests=EProcessPair(control=prior, control_bad=usual * prior),
        ticks=ticks,
    )


def calibration_of(calibration: Mapping[str, Calibration], name: str, slo: Slo) -> Calibration | None:
    """How this stream's bad requests clump at blue's servers; None if unknown."""
    counted = name not in LATENCIES or objective_of(slo, name) is not None
    return calibration.get(name) if counted else None


def phi_of(spread: Calibration | None) -> float:
    """The design effect of requests."""
    return max(1.0, spread.phi) if spread else DEFAULT_PHI


def tick_phi_of(spread: Calibration) -> float:
    """The design effect of ticks, its excess over 1 raised by its standard error, sqrt(2 / n) over n clumps.

    A clump is `tick_phi` ticks above the edge. Four hours hold a dozen stalls of minutes; calibrations with
    too few of them caused most rollbacks of equal greens.
    """
    phi = max(1.0, spread.tick_phi)
    clumps = max(1.0, spread.ticks * spread.tick_share / phi)
    return 1.0 + (phi - 1.0) * (1.0 + sqrt(2.0 / clumps))


def tick_margin(stream: EvidenceStream, spread: Calibration) -> float:
    """How much more often a server's tick lies above the edge if green is worse by the margin.

    At least 0.1; a fixed 0.1 rolls back half of the greens at the margin where ticks have many requests.
    """
    of = max(5, round(spread.tick_requests))
    most = floor(spread.tick_edge * of + 1e-9)
    shift = _above(most, of, stream.usual + stream.margin) - _above(most, of, stream.usual)
    return max(0.10, shift + 0.05)


def _above(most: int, of: int, share: float) -> float:
    """P(X > most) of a binomial X."""
    if share <= 0:
        return 0.0
    if share >= 1:
        return 1.0 if most < of else 0.0
    terms = (
        exp(lgamma(of + 1) - lgamma(k + 1) - lgamma(of - k + 1) + k * log(share) + (of - k) * log(1 - share))
        for k in range(most + 1)
    )
    return max(0.0, 1.0 - sum(terms))
