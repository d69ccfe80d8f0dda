"""Evidence from blocks whose arm was drawn by lot: valid at any time and under any load.

x is the share of bad requests of a block, c the middle between the shares of both arms in the blocks before
(those with as many arrivals as before the trial, and those with more, apart), s = 1 if the candidate was on,
else -1. If both arms are alike, x is the same whichever was drawn, drift, bursts and queues that one block
leaves to the next included. So given x and c both signs are equally likely, and a bet on the sign has a mean
factor of 1, however large:

    better  1 + s tanh(theta z)
    worse   1 - s tanh(theta z)      z = (c - x) / the standard error of x

A product of such factors is an e-process: P(ever >= 1/a) <= a (Ville). tanh(theta z) is the best bet where z
is normal with the mean s theta and the variance 1; a mean over `STRENGTHS` takes the place of theta.

"Worse, or better, by at least m" has no such symmetry. There d = 2 s (c - x) has, over the lot, the mean of
the present arm's share - the candidate's. The bet 1 + theta (d + m) / noise, with the noise known from the
blocks before, has a mean of 1 where that difference is -m (tests of the mean by betting: Waudby-Smith,
Ramdas, JRSS B 2024), nearly so for the limit to `FAR` times the noise.

The price of needing no assumption on the load is that a block multiplies the evidence by 2 at most: 5 that
were drawn are the least for 20 to 1, 7 for 100 to 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log, log1p, sqrt, tanh

from flettner.agent.domain.blocks import Arm, BadOf, Block, BlockMeasure
from flettner.agent.judge.eprocess import log_sum

STRENGTHS = (0.12, 0.5, 1.5)
WEIGHTS = (0.1, 0.45, 0.45)
BOLDEST = 0.98  # a single block that disagrees costs at most a factor of 50
LINEAR = (0.03, 0.1, 0.3)
FAR = 3.0  # times the noise
HOPED = 0.5  # prior: the bad share of an unseen arm over the other's; any number is valid
KEEP = 0.5  # weight of the blocks before in an arm's share, each time that the arm is on


def add_block(
    measure: BlockMeasure, block: Block, counts: BadOf, *, tolerance: float, gain: float
) -> BlockMeasure:
    """Add a block's result by this measure.

    Shares of requests: it may be worse by `tolerance`, and must be better by `gain`.
    """
    of, bad = counts
    if not of:
        return measure
    if block.by_lot:
        measure = _bet(measure, block, counts, tolerance, gain)
    level = level_of(block.arm, busy=block.busy)
    was_of, was_bad = measure.levels.get(level, (0.0, 0.0))
    now = (round(KEEP * was_of + of, 3), round(KEEP * was_bad + bad, 3))
    return replace(measure, levels={**measure.levels, level: now})


def level_of(arm: Arm, *, busy: bool) -> str:
    return f"{arm}, busy" if busy else arm


def log_evidence(logs: Sequence[float]) -> float:
    """The logarithm of the mean over the strengths."""
    if not logs:
        return 0.0
    return log_sum([log(weight) + value for weight, value in zip(WEIGHTS, logs, strict=True)])


def _bet(measure: BlockMeasure, block: Block, counts: BadOf, tolerance: float, gain: float) -> BlockMeasure:
    (of, bad), sign = counts, 1.0 if block.arm == "candidate" else -1.0
    evidence, margin, middle = measure.evidence, measure.margin, _middle(measure, busy=block.busy)
    d = 2 * sign * (middle - bad / of)
    noise = 2 * _standard_error(middle, of)
    if margin:
        worse = _bet_on_mean(evidence.worse, -(d + margin) / noise)
        better = _bet_on_mean(evidence.better, (d - margin) / noise)
    else:
        z = d / 2 / _standard_error((middle + bad / of) / 2, of)
        worse, better = _bet_on_sign(evidence.worse, -z), _bet_on_sign(evidence.better, z)
    evidence = replace(
        evidence,
        worse=worse,
        better=better,
        not_worse=_bet_on_mean(evidence.not_worse, (d + tolerance) / noise),
        no_gain=_bet_on_mean(evidence.no_gain, (gain - d) / noise),
    )
    return replace(measure, evidence=evidence)


def _middle(measure: BlockMeasure, *, busy: bool) -> float:
    """Between the arms. A load that was never seen is taken to be like the other; see HOPED for an arm."""
    arms: tuple[Arm, ...] = ("present", "candidate")
    for load in (busy, not busy):
        counts = (measure.levels.get(level_of(arm, busy=load), (0.0, 0.0)) for arm in arms)
        shares = [bad / of for of, bad in counts if of]
        if shares:
            is_first = len(shares) == 1 and not busy and load is busy
            return shares[0] * (1 + HOPED) / 2 if is_first else sum(shares) / len(shares)
    return 0.0


def _standard_error(share: float, of: float) -> float:
    """Of a share of independent requests, with one bad and one good request added."""
    p = (share * of + 1) / (of + 2)
    return sqrt(p * (1 - p) / of)


def _bet_on_sign(logs: Sequence[float], z: float) -> tuple[float, ...]:
    return _add(logs, [min(max(tanh(theta * z), -BOLDEST), BOLDEST) for theta in STRENGTHS])


def _bet_on_mean(logs: Sequence[float], z: float) -> tuple[float, ...]:
    return _add(logs, [theta * min(max(z, -FAR), FAR) for theta in LINEAR])


def _add(logs: Sequence[float], bets: list[float]) -> tuple[float, ...]:
    before = logs or (0.0,) * len(bets)
    return tuple(round(log_e + log1p(bet), 5) for log_e, bet in zip(before, bets, strict=True))
