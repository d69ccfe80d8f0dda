"""Does a new release take longer for its tokens than the old one beside it, at equal load? Pure.

Other flags may trade slower tokens for an earlier first token, and a promise decides where one is made. A new
release with the same flags trades nothing. So where no objective for the ITL is set, it must be as fast:

    r = mean of ln(ITL) of green's requests - mean of ln(ITL) of blue's
    s = sqrt(phi (variance_green / n_green + variance_blue / n_blue))
    slower      r - 4 s > ln(1 + SLOWER): it is rolled back
    as fast     r + 1.65 s < ln(1 + TOLERATED): needed to pass

`phi`: the largest design effect of blue's streams, at least DEFAULT_PHI, as a stall delays all that runs. The
bounds are those of one look: one in 30,000, and one in 20. It is asked every second, which multiplies the
first by about ten, as the requests double four times between LEAST and the end of a step.
"""

from math import exp, log, sqrt

from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.failure_modes import DEFAULT_PHI

SLOWER, TOLERATED = 0.03, 0.06
Z_SLOWER, Z_AS_FAST = 4.0, 1.65
LEAST = 200  # requests of each side


def compare_pace(green: RequestCounts, blue: RequestCounts, phi: float) -> tuple[float, float] | None:
    """(r, s) of the module's docstring; None without enough requests whose tokens were counted."""
    if min(green.pace.requests, blue.pace.requests) < LEAST:
        return None
    variance = sum(arm.pace.variance / arm.pace.requests for arm in (green, blue))
    return green.pace.mean - blue.pace.mean, sqrt(max(phi, DEFAULT_PHI) * variance)


def require_pace(verdict: Verdict, green: RequestCounts, blue: RequestCounts, phi: float) -> Verdict:
    """The verdict on a release that must be as fast. Its own failure stays, and it passes only if shown."""
    compared = compare_pace(green, blue, phi)
    if compared is None or verdict.kind in {"fail", "inadmissible"}:
        return verdict
    difference, error = compared
    if difference - Z_SLOWER * error > log(1 + SLOWER):
        why = f"green is worse: {_describe(difference, error, green, blue)}"
        return Verdict(kind="fail", why=why, bad=verdict.bad)
    if verdict.kind == "pass" and difference + Z_AS_FAST * error >= log(1 + TOLERATED):
        measured = _describe(difference, error, green, blue)
        waits = f"it is not shown that tokens take at most {1 + TOLERATED} times as long: {measured}"
        return Verdict(kind="wait", why=waits, waits=waits, bad=verdict.bad)
    return verdict


def _describe(difference: float, error: float, green: RequestCounts, blue: RequestCounts) -> str:
    low, high = (exp(difference + side * Z_AS_FAST * error) for side in (-1, 1))
    return (
        f"tokens take {exp(difference):.3f} times as long ({low:.3f} to {high:.3f}), in "
        f"{green.pace.requests:,} requests of green and {blue.pace.requests:,} of blue"
    )
