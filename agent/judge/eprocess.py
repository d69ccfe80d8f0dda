"""Is one share of bad requests above another by more than a margin? Evidence that is valid at any time.

A tick brings counts of two sides that ran at the same time: the control (n_b requests, k_b bad) and the
tested side (n_c, k_c), which is mostly green. Their true shares q_b, q_c may move from tick to tick in any
way, as long as they move together.

    above  H0: q_c <= q_b + d      alternatives c* = b* + 1.5 d 2^j, up to 0.97
    below  H0: q_c >= q_b + d'     alternatives c* in {b*, b*/2, b* + d'/2}
    b*  the control's share so far (half of it forgotten in 10 min): known before the tick
    x   minimises n_b KL(b*||x) + n_c KL(c*||x + d): the point of H0 nearest to the alternative
    d, d'   the margin and the tolerance, each fixed before the first count
    log E += (k_b ln(b*/x) + (n_b - k_b) ln((1-b*)/(1-x))
              + k_c ln(c*/(x+d)) + (n_c - k_c) ln((1-c*)/(1-x-d))) / phi

Each factor has a mean of at most 1 under all of H0: by 1 + u <= e^u it is at most
exp(sum of n (q - q0)(q* - q0) / (q0 (1 - q0))), and the exponent is <= 0 by the first-order condition of the
projection on the convex H0. So E is an e-process, and P(E ever >= 1/a) <= a (Ville). A mean of e-processes is
one: over alternatives, over start times (so that earlier good evidence does not bury a late fault; weights
1/2, 3/(pi i)^2), over requests and ticks, over streams.

`phi`, the design effect (Kish 1965): how much more counts of equal servers differ than independent requests
would; it makes the guarantee hold nearly where failures come in clumps (`bench/judge` measures how nearly).
Turner, Ly, Gruenwald, 'Generic e-variables for exact sequential k-sample tests', JSPI 2024.
"""

from dataclasses import replace
from functools import cache
from math import exp, log, pi

from flettner.agent.domain.canary_evidence import EProcessPair

HALF_LIFE_S = 600.0
RESTART_S = 300.0
HIGHEST = 0.97
ABOVE = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # without a margin
STEPS, CLOSE = 60, 1e-6  # of Newton, whose error is the square of its last step
LEAST, MOST = 1e-4, 0.9  # the control's share is never taken to be less, or more


@cache
def grid(margin: float) -> tuple[float, ...]:
    """By how much each alternative exceeds the control's share."""
    if margin <= 0:
        return ABOVE
    return tuple(d for j in range(20) if (d := 1.5 * margin * 2**j) < HIGHEST)


def nearest(n_b: float, n_c: float, b: float, c: float, d: float) -> float:
    """The share x of the control with which (x, x + d) is nearest to (b, c).

    The one root of n_b (x - b) / (x (1 - x)) + n_c (y - c) / (y (1 - y)), y = x + d, between b and c - d:
    with both denominators multiplied out a cubic, by Newton's method, halving where that would leave the
    bracket. Mostly 4 steps, to within 1e-12.
    """
    e = c - d
    low = max(min(b, e), 1e-9)
    high = min(max(b, e), 1 - d - 1e-9)
    x = min(max((n_b * b + n_c * e) / (n_b + n_c), low), high)
    for _ in range(STEPS):
        y = x + d
        v, w = x * (1 - x), y * (1 - y)
        value = n_b * (x - b) * w + n_c * (x - e) * v
        if value > 0:
            high = x
        else:
            low = x
        slope = n_b * (w + (x - b) * (1 - y - y)) + n_c * (v + (x - e) * (1 - x - x))
        then = x - value / slope if slope else low
        if not low <= then <= high:
            then = 0.5 * (low + high)
        if abs(then - x) < CLOSE * x:
            return then
        x = then
    return x


def log_factor(counts: tuple[float, float, float, float], b: float, c: float, d: float) -> float:
    """The logarithm of one tick's factor, for one alternative, with a concurrent control."""
    n_b, k_b, n_c, k_c = counts
    x = nearest(n_b, n_c, b, c, d)
    return k_b * log(b / x) + (n_b - k_b) * log((1 - b) / (1 - x)) + log_factor_alone(n_c, k_c, c, x + d)


def log_factor_alone(n_c: float, k_c: float, c: float, limit: float) -> float:
    """The same against a fixed limit on the tested share, without a control."""
    return k_c * log(c / limit) + (n_c - k_c) * log((1 - c) / (1 - limit))


def update_with_control(
    pair: EProcessPair,
    control: tuple[int, int],
    tested: tuple[int, int],
    *,
    margin: float,
    tolerance: float,
    phi: float,
    at_s: float,
    tick_s: float,
) -> EProcessPair:
    """One tick of (requests, bad requests) of both sides. `margin`: d; `tolerance`: d'.

    `at_s`: valid seconds before the tick. A margin above which no alternative exists yields no evidence.
    """
    (n_b, k_b), (n_c, k_c) = control, tested
    if n_b and n_c and grid(margin):
        b = min(max(pair.control_bad / pair.control if pair.control else 0.01, LEAST), MOST)
        counts = (n_b, k_b, n_c, k_c)
        higher = [min(b + step, 0.99) for step in grid(margin)]
        above = [log_factor(counts, b, c, margin) / phi if c > b + margin else 0.0 for c in higher]
        lower = (b, 0.5 * b, min(b + 0.5 * tolerance, 0.98))
        below = [log_factor(counts, b, c, tolerance) / phi if tolerance < HIGHEST else 0.0 for c in lower]
        pair = _add_evidence(pair, above, below, at_s)
    keep = 0.5 ** (tick_s / HALF_LIFE_S)
    return replace(pair, control_bad=keep * pair.control_bad + k_b, control=keep * pair.control + n_b)


def update_without_control(
    pair: EProcessPair,
    tested: tuple[int, int],
    *,
    margin: float,
    above: float,
    tolerance: float,
    below: float,
    phi: float,
    at_s: float,
) -> EProcessPair:
    """One tick of (requests, bad requests) without a control: `above` and `below` are the limits."""
    requests, bad = tested
    base = above - margin
    higher = [min(base + 2 * step, 0.99) for step in grid(margin / 2)]  # as many as with a control
    for_above = [log_factor_alone(requests, bad, c, above) / phi if c > above else 0.0 for c in higher]
    b = max(below - tolerance, LEAST)
    lower = (b, 0.5 * b, 0.5 * (b + below))
    for_below = [log_factor_alone(requests, bad, c, below) / phi for c in lower]
    return _add_evidence(pair, for_above, for_below, at_s)


def _add_evidence(pair: EProcessPair, above: list[float], below: list[float], at_s: float) -> EProcessPair:
    """The mixture over start times s, of weight w, and J alternatives with the evidence L now, L_s then:

    E = rest + sum over s, j of w exp(L - L_s) / J = rest + sum over j of exp(L) S / J

    with S = sum over s of w exp(-L_s), which changes at a start only, and the weight of the starts to come.
    """
    if pair.started < 1 + int(at_s // RESTART_S):
        pair = _begin_start(pair, len(above))
    now = tuple([round(old + new, 5) for old, new in zip(pair.above, above, strict=True)])
    logs = [evidence + start for evidence, start in zip(now, pair.starts, strict=True)]
    most = max(0.0, *logs)
    mixture = _rest(pair.started) * exp(-most) + sum([exp(value - most) for value in logs]) / len(logs)
    lower = tuple([round(old + new, 5) for old, new in zip(pair.below, below, strict=True)])
    log_below = log_sum(lower) - log(len(lower))
    return replace(
        pair,
        above=now,
        below=(lower[0], lower[1], lower[2]),
        log_above=round(most + log(mixture), 5),
        most_below=round(max(pair.most_below, log_below), 5),
    )


def _begin_start(pair: EProcessPair, alternatives: int) -> EProcessPair:
    if not pair.started:
        first = (round(log(_weight(0)), 5),) * alternatives
        return replace(pair, above=(0.0,) * alternatives, starts=first, started=1)
    log_w = log(_weight(pair.started))
    starts = [log_sum((old, log_w - now)) for old, now in zip(pair.starts, pair.above, strict=True)]
    return replace(pair, starts=tuple([round(start, 5) for start in starts]), started=pair.started + 1)


def _weight(start: int) -> float:
    return 3 / (pi * start) ** 2 if start else 0.5


@cache
def _rest(started: int) -> float:
    return 1 - sum(map(_weight, range(started)))


def log_sum(logs: tuple[float, ...] | list[float]) -> float:
    """The logarithm of the sum of exponentials."""
    most = max(logs)
    return most + log(sum(exp(value - most) for value in logs))
