"""How many requests fail or miss the SLO: whether blue misses it, and which gain is worth a change."""

from collections.abc import Mapping
from math import sqrt

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.failure_modes import DEFAULT_PHI, LATENCIES, calibration_of, objective_of, phi_of

GAIN = 0.10
BADLY = 0.5  # the share of bad requests at which blue fails its SLO by far
LEAST_BASELINE = 20  # requests
BUSIER = 1.15  # times the baseline's rate: a server at parity, too, may get this much more than its share
Z95 = 1.96


def count_missed(arm: RequestCounts) -> tuple[int, int]:
    """(requests, bad requests) by goodput."""
    return arm.served + arm.gave_up, arm.missed + arm.gave_up


def allowed_share(slo: Slo) -> float:
    """The share of bad requests within the SLO, if each objective is missed by other requests."""
    latencies = (objective_of(slo, name) for name in LATENCIES)
    return min(1.0, 1 - slo.errors + sum(1 - objective.share for objective in latencies if objective))


def goodput_phi(calibration: Mapping[str, Calibration], slo: Slo) -> float:
    """The largest design effect of all streams in which a request can be bad."""
    names = ("errors", "stalled", *(name for name in LATENCIES if objective_of(slo, name) is not None))
    return max(phi_of(calibration_of(calibration, name, slo)) for name in names)


def advancing_phi(calibration: Mapping[str, Calibration], slo: Slo) -> float:
    """The design effect where an error costs time only: to take more traffic or to give a change up."""
    return min(goodput_phi(calibration, slo), DEFAULT_PHI)


def misses_slo(calibration: Mapping[str, Calibration], slo: Slo, baseline: RequestCounts) -> bool:
    """Whether the baseline misses the SLO, by far or beyond what pauses of servers explain.

    Then a canary relieves blue.
    """
    of, bad = count_missed(baseline)
    if of < LEAST_BASELINE or not bad:
        return False
    low, _ = baseline_interval(baseline, goodput_phi(calibration, slo))
    return fails_badly(baseline) or low > allowed_share(slo)


def fails_badly(counts: RequestCounts) -> bool:
    """Whether at least half of these requests are bad."""
    of, bad = count_missed(counts)
    return of >= LEAST_BASELINE and bad >= BADLY * of


def least_gain(baseline: RequestCounts) -> float:
    of, bad = count_missed(baseline)
    return min(GAIN, 0.5 * bad / of) if bad else GAIN


def baseline_interval(baseline: RequestCounts, phi: float) -> tuple[float, float]:
    """The baseline's share of bad requests: Wilson, counts over phi."""
    of, bad = count_missed(baseline)
    return wilson_interval(round(bad / phi), max(round(of / phi), 1)) or (0.0, 1.0)


def wilson_interval(bad: int, of: int) -> tuple[float, float] | None:
    """Wilson (1927): 95 % of such intervals hold the true share; None without requests."""
    if not of:
        return None
    share, square = bad / of, Z95**2 / of
    middle = (share + square / 2) / (1 + square)
    half = Z95 / (1 + square) * sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)
