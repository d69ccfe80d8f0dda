"""Section `exposure`: cost of a bad green until its rollback, under the documented plans of other tools.

8 rps over four servers. Section `rollouts` has the figures of flettner.
The limits lie halfway between good and bad.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from math import inf
from random import Random

from bench.judge.hours import finite
from bench.judge.runs import Pool, Row
from bench.judge.scenarios import LIMITS
from bench.judge.traffic import Pair, pair, quantiles, seeded

RPS, USUAL, MINUTE_S = 8.0, 0.01, 60.0
Cost = tuple[float, float, float]
"""Minutes until the rollback (inf: never), requests of green, excess bad requests."""


def flagger(random: Random, share: float, most: float) -> Cost:
    """Documented example: +5 % per minute up to 50 %, threshold 10; a failed check holds the weight."""
    weight = failed = asked = 0
    for minute in range(1, 241):
        of, bad = pair(random, RPS * MINUTE_S * weight / 100, share)
        asked += of
        if failed >= 10:  # noqa: PLR2004 - the threshold
            return minute, asked, asked * (share - USUAL)
        if weight and (not of or bad > most * of):
            failed += 1
        elif weight >= 50:  # noqa: PLR2004 - promoted
            break
        else:
            weight += 5
    return inf, asked, asked * (share - USUAL)


def argo(random: Random, share: float, most: float) -> Cost:
    """Documented example: 20, 40, 60, 80 %, 10 min each; analysed every 5 min from the second step on."""
    asked = failed = 0
    last: Pair = (0, 0)
    for number in range(1, 9):
        weight = 20 * ((number + 1) // 2)
        last = pair(random, RPS * 5 * MINUTE_S * weight / 100, share)
        asked += last[0]
        failed += number >= 2 and last[1] > most * last[0]  # noqa: PLR2004 - the first analysis is at the start of the step
        if failed > 3:  # noqa: PLR2004 - failureLimit
            return 5.0 * number, asked, asked * (share - USUAL)
    return inf, asked, asked * (share - USUAL)


RULES: Mapping[str, Callable[[Random, float, float], Cost]] = {"flagger": flagger, "argo": argo}


def cost(rule: str, share: float, run: int) -> Cost:
    return RULES[rule](seeded("exposure", rule, share, run), share, LIMITS[share])


def measure(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    for share, rule in product(LIMITS, RULES):
        minutes, requests, excess = zip(*pool.of(partial(cost, rule, share), runs), strict=True)
        yield (
            f"1 to {share:.0%}, {rule}'s example",
            {
                "runs": runs,
                "back": sum(value < inf for value in minutes) / runs,
                "minutes": finite(quantiles(minutes, 0.5)),
                "requests": finite(quantiles(requests, 0.5)),
                "excess_bad": finite(quantiles(excess, 0.5)),
            },
        )
