"""How long a verdict will take at the rate of the last steady minutes: shown before the approval.

Which test will decide depends on blue. Where it misses its SLO, a better green shows that with a few requests
of each step, so a step takes its settling time and its least requests. Where it meets its SLO, a change that
needs a gain is given up as soon as the look for one and the evidence against one are due, and a change that
needs none passes when it is proved not worse:

An equal green gains evidence at a steady rate: per request of its own, the best alternative's expected
log-factor (`eprocess.gained` at the expected counts), divided by the design effect. The median number of
requests is ln(1/beta) over that rate, within 12 % of what `bench/judge` simulates; nine of ten verdicts take
less than 2.3 times the median.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, EvidenceStream, GainNeeded
from flettner.agent.domain.model import Forecast, Plan, Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import (
    GAIN,
    advancing_phi,
    baseline_interval,
    count_missed,
    fails_badly,
    goodput_phi,
    least_gain,
    misses_slo,
)
from flettner.agent.judge.canary.evidence import FULL_WEIGHT, OWN_LEAST, SETTLE_AT_MOST_S, settling_s
from flettner.agent.judge.canary.goodput import SURE_FUTILE, SURE_RELIEVED
from flettner.agent.judge.canary.passing import FEW, LOOK_LEAST, LOOK_LEAST_S, LOOK_REQUESTS, LOOK_S
from flettner.agent.judge.eprocess import LEAST, MOST, log_factor, log_factor_alone
from flettner.agent.judge.failure_modes import calibration_of, count_bad, open_streams, phi_of

NINE_OF_TEN = 2.3
VARIES = 1.8  # nine of ten times of ten requests that come at random, over the mean
SETTLE_S = 10.0  # of a green without a queue, twice the time of most of its requests
MARGINS = (0.02, 0.03, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """Blue's traffic, and the confidence that a pass needs."""

    slo: Slo
    recent: RequestCounts
    rate: float  # requests per second
    calibration: Mapping[str, Calibration]
    beta: float
    gain_needed: GainNeeded = "never"

    @property
    def missed(self) -> bool:
        return misses_slo(self.calibration, self.slo, self.recent)


def forecast_plan(
    plan: Plan,
    *,
    slo: Slo,
    recent: RequestCounts,
    rate_rps: float | None,
    calibration: Mapping[str, Calibration],
    beta: float,
    gain_needed: GainNeeded = "never",
) -> Forecast | None:
    """None while there is too little traffic."""
    if not recent.total or not rate_rps:
        return None
    traffic = _Traffic(
        slo=slo, recent=recent, rate=rate_rps, calibration=calibration, beta=beta, gain_needed=gain_needed
    )
    *canary, (hold_s, _) = spans = _spans(plan, plan.margin, traffic)
    late = _too_long(plan, spans)
    wider = (margin for margin in MARGINS if late and margin > plan.margin)
    fitting = (margin for margin in wider if not _too_long(plan, _spans(plan, margin, traffic)))
    return Forecast(
        rate_rps=round(rate_rps, 3),
        usual_s=round(sum(usual_s for usual_s, _ in canary)),
        likely_s=round(sum(likely_s for _, likely_s in canary)),
        hold_s=round(hold_s),
        too_long=late,
        fitting_margin=next(fitting, None),
        decided_by="better" if traffic.missed else "gain" if gain_needed == "always" else "not_worse",
    )


def _too_long(plan: Plan, spans: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Weights of the steps that nine of ten equal greens would not pass in time."""
    pairs = zip(plan.steps, spans, strict=True)
    return tuple(step.weight for step, (_, likely_s) in pairs if likely_s > step.at_most_s)


def _spans(plan: Plan, margin: float, traffic: _Traffic) -> list[tuple[float, float]]:
    return [_span(step, margin, traffic) for step in plan.steps]


def _span(step: Step, margin: float, traffic: _Traffic) -> tuple[float, float]:
    """Seconds until the step's verdict: the median, and the 90th percentile."""
    own_rate = traffic.rate * step.weight / 100
    if traffic.missed:
        return _span_of_better(step, own_rate, traffic)
    if traffic.gain_needed == "always" and step.parity <= step.weight < FULL_WEIGHT:
        return _span_of_gain(step, own_rate, traffic)
    least_s = max(step.at_least_s, step.requests / own_rate) + settling_s(traffic.recent)
    proof_s = max(_proofs(step, margin, traffic), default=0.0) / own_rate
    return max(least_s, proof_s), max(least_s, NINE_OF_TEN * proof_s)


def _span_of_better(step: Step, own_rate: float, traffic: _Traffic) -> tuple[float, float]:
    """Seconds of a step while blue misses its SLO. Requests come at random, so their number varies."""
    shortened = fails_badly(traffic.recent) and step.weight < FULL_WEIGHT
    requests: float = min(step.requests, FEW) if shortened and step.weight >= step.parity else step.requests
    if step.parity <= step.weight < FULL_WEIGHT:
        requests = max(requests, _requests_to_relieve(traffic))
    settle_s = min(max(OWN_LEAST / own_rate, SETTLE_S), SETTLE_AT_MOST_S)
    usual_s = settle_s + max(step.at_least_s, requests / own_rate)
    return usual_s, max(step.at_least_s + SETTLE_AT_MOST_S, VARIES * usual_s)


def _requests_to_relieve(traffic: _Traffic) -> float:
    """Good requests of green that prove it better than the baseline, and half as many again for bad ones."""
    phi = advancing_phi(traffic.calibration, traffic.slo)
    low = min(max(baseline_interval(traffic.recent, phi)[0], 0.01), 0.98)
    share = max(low - least_gain(traffic.recent), LEAST) / 2
    return 1.5 * phi * (SURE_RELIEVED + log(3)) / log((1 - share) / (1 - low))


def _span_of_gain(step: Step, own_rate: float, traffic: _Traffic) -> tuple[float, float]:
    """Seconds until a green as good as a healthy blue is checked for a gain, and until that is ruled out."""
    phi = advancing_phi(traffic.calibration, traffic.slo)
    enough = LOOK_REQUESTS * goodput_phi(traffic.calibration, traffic.slo) / own_rate
    look_s = max(min(LOOK_S, max(LOOK_LEAST_S, enough)), LOOK_LEAST / own_rate)
    of, bad = count_missed(traffic.recent)
    q = min(max(bad / of, LEAST), MOST)
    ratio = (100 - step.weight) / step.weight
    blue = (ratio, ratio * q)
    near = (0.5 * q, q, min(q + 0.5 * GAIN, 0.98))
    each = max(log_factor((1.0, q, *blue), q, b, GAIN) for b in near)
    proof_s = phi * (SURE_FUTILE + log(3)) / max(each, 1e-9) / own_rate
    settle_s = settling_s(traffic.recent)
    return settle_s + max(look_s, proof_s), settle_s + max(look_s, NINE_OF_TEN * proof_s)


def _proofs(step: Step, margin: float, traffic: _Traffic) -> Iterator[float]:
    """Requests of green that each stream's proof takes."""
    if step.weight < step.parity:
        return
    slo, recent, calibration = traffic.slo, traffic.recent, traffic.calibration
    for stream in open_streams(
        CanaryEvidence(calibration=calibration), step=step, slo=slo, control=recent, margin=margin
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
