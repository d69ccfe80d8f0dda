"""How long a verdict will take at the traffic of the last minutes: shown before the approval.

An equal green gains evidence at a steady rate: per request of its own, the best alternative's expected
log-factor (`eprocess.gained` at the expected counts), divided by the design effect. The median number of
requests is ln(1/beta) over that rate, within 12 % of what `bench/judge` simulates; nine of ten verdicts take
less than 2.3 times the median.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

from agent.domain.calibration import Calibration
from agent.domain.model import Forecast, Plan, Slo, Step
from agent.domain.request_counts import RequestCounts
from agent.domain.trial import EvidenceStream, Trial
from agent.judge.eprocess import LEAST, MOST, log_factor, log_factor_alone
from agent.judge.evidence import FULL_WEIGHT, settling_s
from agent.judge.failure_modes import calibration_of, count_bad, open_streams, phi_of

NINE_OF_TEN = 2.3
MARGINS = (0.02, 0.03, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """Blue's traffic, and the confidence that a pass needs."""

    slo: Slo
    recent: RequestCounts
    rate: float  # requests per second
    calibration: Mapping[str, Calibration]
    beta: float


def forecast_plan(
    plan: Plan,
    *,
    slo: Slo,
    recent: RequestCounts,
    recent_s: float,
    calibration: Mapping[str, Calibration],
    beta: float,
) -> Forecast | None:
    """None while there is too little traffic."""
    if not recent.total or recent_s <= 0:
        return None
    rate = recent.asked / recent_s
    traffic = _Traffic(slo=slo, recent=recent, rate=rate, calibration=calibration, beta=beta)
    *canary, (hold_s, _) = spans = _spans(plan, plan.margin, traffic)
    late = _too_long(plan, spans)
    wider = (margin for margin in MARGINS if late and margin > plan.margin)
    fitting = (margin for margin in wider if not _too_long(plan, _spans(plan, margin, traffic)))
    return Forecast(
        rate_rps=round(rate, 3),
        usual_s=round(sum(usual_s for usual_s, _ in canary)),
        likely_s=round(sum(likely_s for _, likely_s in canary)),
        hold_s=round(hold_s),
        too_long=late,
        fitting_margin=next(fitting, None),
    )


def _too_long(plan: Plan, spans: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Weights of the steps that nine of ten equal greens would not pass in time."""
    pairs = zip(plan.steps, spans, strict=True)
    return tuple(step.weight for step, (_, likely_s) in pairs if likely_s > step.at_most_s)


def _spans(plan: Plan, margin: float, traffic: _Traffic) -> list[tuple[float, float]]:
    return [_span(step, margin, traffic) for step in plan.steps]


def _span(step: Step, margin: float, traffic: _Traffic) -> tuple[float, float]:
    """Seconds until an equal green passes: the median, and the 90th percentile."""
    own_rate = traffic.rate * step.weight / 100
    least_s = max(step.at_least_s, step.requests / own_rate) + settling_s(traffic.recent)
    proof_s = max(_proofs(step, margin, traffic), default=0.0) / own_rate
    return max(least_s, proof_s), max(least_s, NINE_OF_TEN * proof_s)


def _proofs(step: Step, margin: float, traffic: _Traffic) -> Iterator[float]:
    """Requests of green that each stream's proof takes."""
    if step.weight < step.parity:
        return
    slo, recent, calibration = traffic.slo, traffic.recent, traffic.calibration
    for stream in open_streams(
        Trial(calibration=calibration), step=step, slo=slo, control=recent, margin=margin
    ):
        of, _ = count_bad(recent, stream.name, stream.edge_s, slo)
        if of:
            phi = phi_of(calibration_of(calibration, stream.name, slo))
            yield log(1 / traffic.beta) / max(_per_request(stream, step), 1e-9) * phi


def _per_request(stream: EvidenceStream, step: Step) -> float:
    q, d = min(max(stream.usual, LEAST), MOST), stream.tolerance
    near = (q, q / 2, min(q + d / 2, 0.98))
    if step.weight >= FULL_WEIGHT:
        limit = min(max(q, stream.promised or 0.0) + 2 * d, 0.98)
        return max(log_factor_alone(1.0, q, c, limit) for c in near if c < limit)
    ratio = (100 - step.weight) / step.weight
    return max((log_factor((ratio, ratio * q, 1.0, q), q, c, d) for c in near), default=inf)
