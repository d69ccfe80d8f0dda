"""Does a new release take longer for its tokens than the old one beside it, at equal load? Pure.

Other flags may trade slower tokens for an earlier first token, and a promise decides where one is made. A new
release with the same flags trades nothing. So where no objective for the ITL is set, it must be as fast:

    r = mean of ln(ITL) of green's requests - mean of ln(ITL) of blue's
    s = sqrt(phi (variance_green / n_green + variance_blue / n_blue))
    slower      r - 4 s > ln(1 + SLOWER): it is rolled back
    as fast     r + 1.65 s < ln(1 + TOLERATED): needed to pass

`phi`: the largest design effect of blue's streams, at least DEFAULT_PHI, as a stall delays all that runs. The
bounds are those of one look: one in 30,000, and one in 20. It is asked every second, which multiplies the
first by about ten, as the requests double four times between LEAST and the end of a step. At a step's time
limit 2.33 s are enough (one in 100).

A pause of a server makes the mean of a request's gaps many times as long, and is judged by the streams. So
both are also asked of the requests without one, those up to PAUSED times blue's median: slower by either is
slower, and as fast is shown by these, where the mean over all is not beyond TOLERATED. These have in common
only the batches in which they run together: their design effect was 2 to 3.5 times the number that run at a
time (simulated servers at 1 and 4 requests/s, blocks of 1 to 10 min). It counts as at most 1 + OVERLAP times.
"""

from math import exp, inf, log, sqrt

from flettner.agent.domain.request_counts import EDGES_S, RequestCounts, TokenPace, quantile
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.failure_modes import DEFAULT_PHI

SLOWER, TOLERATED = 0.03, 0.06
Z_SLOWER, Z_AT_LIMIT, Z_AS_FAST = 4.0, 2.33, 1.65
LEAST = 200  # requests of each side
PAUSED, OVERLAP = 2.0, 4.0

_LN_OF_BUCKET = tuple(log(1000 * edge_s) - log(EDGES_S[1] / EDGES_S[0]) / 2 for edge_s in EDGES_S)
"""The middle of each bucket, as TokenPace has it: ln(ITL / 1 ms)."""


def compare_pace(
    green: RequestCounts, blue: RequestCounts, phi: float, *, below_s: float = inf
) -> tuple[float, float] | None:
    """(r, s) of the module's docstring; None without enough requests whose tokens were counted.

    `below_s`: only of requests with an ITL below it, to the next edge of the buckets.
    """
    arms = [_pace_below(arm, below_s) for arm in (green, blue)]
    if min(arm.requests for arm in arms) < LEAST:
        return None
    variance = sum(arm.variance / arm.requests for arm in arms)
    return arms[0].mean - arms[1].mean, sqrt(max(phi, DEFAULT_PHI) * variance)


def _pace_below(arm: RequestCounts, below_s: float) -> TokenPace:
    pace, above_ms = arm.pace, 0.0
    for bucket, requests in enumerate(arm.itl[:-1]):
        if requests and above_ms >= 1000 * below_s:
            logs = round(1000 * _LN_OF_BUCKET[bucket])
            pace = pace.plus(TokenPace(-requests, -requests * logs, -requests * logs**2))
        above_ms = 1000 * EDGES_S[bucket]
    return pace


def require_pace(
    verdict: Verdict,
    green: RequestCounts,
    blue: RequestCounts,
    phi: float,
    *,
    seconds: float = 0.0,
    at_limit: bool = False,
) -> Verdict:
    """The verdict on a release that must be as fast. Its own failure stays, and it passes only if shown.

    `seconds`: in which these requests were counted; 0: unknown.
    """
    every = compare_pace(green, blue, phi)
    if every is None or verdict.kind in {"fail", "inadmissible"}:
        return verdict
    edge_s = PAUSED * (quantile(blue.itl, 0.5) or inf)
    together = max(_running_together(arm, seconds) for arm in (green, blue))
    unpaused = compare_pace(green, blue, min(phi, 1 + OVERLAP * together), below_s=edge_s) or every
    z_slower = Z_AT_LIMIT if at_limit else Z_SLOWER
    for difference, error in (every, unpaused):
        if difference - z_slower * error > log(1 + SLOWER):
            why = f"green is worse: {_describe(difference, error, green, blue)}"
            return Verdict(kind="fail", why=why, bad=verdict.bad)
    difference, error = unpaused
    if verdict.kind == "pass" and max(every[0], difference + Z_AS_FAST * error) >= log(1 + TOLERATED):
        measured = _describe(*(every if every[0] >= log(1 + TOLERATED) else unpaused), green, blue)
        waits = f"it is not shown that tokens take at most {1 + TOLERATED} times as long: {measured}"
        return Verdict(kind="wait", why=waits, waits=waits, bad=verdict.bad)
    return verdict


def _running_together(arm: RequestCounts, seconds: float) -> float:
    """How many requests run at a time, by Little's law; the time is that of nine of ten."""
    lasts_s = quantile(arm.e2e, 0.9)
    return arm.total / seconds * lasts_s if seconds and lasts_s else inf


def _describe(difference: float, error: float, green: RequestCounts, blue: RequestCounts) -> str:
    low, high = (exp(difference + side * Z_AS_FAST * error) for side in (-1, 1))
    return (
        f"tokens take {exp(difference):.3f} times as long ({low:.3f} to {high:.3f}), in "
        f"{green.pace.requests:,} requests of green and {blue.pace.requests:,} of blue"
    )
