"""Full rollouts of equal and bad greens in virtual time.

python -m bench.rollouts [--rollouts N] [--bad N] [--mitigations N] [--json FILE] prints a line for each and
writes JSON. It exits 1 if an equal green is rolled back as worse, a bad green is not rolled back, a useless
green is promoted or a cured green is not.
"""

import logging
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import cycle, islice, product
from pathlib import Path

import structlog

from bench.results import new_parser, write
from bench.rollouts.cases import BAD, CALM, CURED, EQUAL, PROFILES, SERVICES, STARVED, USELESS
from bench.rollouts.story import DEFAULT, Case, Outcome, play
from flettner.agent.domain.model import Plan

BAD_RATES = (8.0, 2.0, 30.0)
HEAD = ("GREEN", "PROFILE", "RPS", "SEED", "RESULT", "AT", "VERDICT s", "ONSET s", "EXPOSED", "BAD", "WHY")


def plan_with(hold_s: float) -> Plan:
    *steps, hold = DEFAULT.steps
    return replace(DEFAULT, steps=(*steps, replace(hold, at_least_s=hold_s)))


def draw_equal(count: int, hold_s: float) -> Iterator[Case]:
    """Yield all rates with all profiles, repeatedly."""
    kinds = cycle([(rate, profile) for profile in PROFILES for rate in SERVICES])
    for seed, (rate, profile) in enumerate(islice(kinds, count)):
        yield Case(seed=seed, rate=rate, profile=profile, green=EQUAL, plan=plan_with(hold_s))


def draw_mitigations(count: int, hold_s: float) -> Iterator[Case]:
    """Yield changes of a server with too few sequences: that cure it, and that change nothing."""
    kinds = cycle(product((CURED, USELESS), PROFILES[:2], list(STARVED)[:3]))
    for seed, (green, profile, rate) in enumerate(islice(kinds, count)):
        yield Case(
            seed=2000 + seed,
            rate=rate,
            profile=profile,
            green=green,
            service=STARVED[rate],
            asks="mitigation",
            plan=plan_with(hold_s),
        )


def draw_bad(count: int) -> Iterator[Case]:
    """Yield all kinds at the first rate, then at the next."""
    kinds = cycle([(rate, green) for rate in BAD_RATES for green in BAD])
    for seed, (rate, green) in enumerate(islice(kinds, count)):
        yield Case(seed=1000 + seed, rate=rate, profile=CALM, green=green)


def is_wrong(outcome: Outcome) -> bool:
    """Return whether the outcome is wrong; a rollout that did not end in time is wrong as well."""
    if outcome.green in {CURED.name, USELESS.name}:
        return (outcome.result == "promoted") is not (outcome.green == CURED.name)
    return outcome.result == "none" or (outcome.result == "rolled_back") is (outcome.green == EQUAL.name)


def line(outcome: Outcome) -> str:
    verdict_s, onset_s = (
        "-" if value is None else f"{value:.0f}" for value in (outcome.verdict_s, outcome.after_onset_s)
    )
    return (
        f"{outcome.green:<22} {outcome.profile:<9} {outcome.rate:>4g} {outcome.seed:>5} {outcome.result:<12} "
        f"{outcome.weight:>3}% {verdict_s:>9} {onset_s:>8} {outcome.exposed:>7} {outcome.bad_exposed:>5}  "
        f"{outcome.why[:110]}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("bench.rollouts", __doc__, "rollouts.json")
    parser.add_argument("--rollouts", type=int, default=32, help="rollouts with an equal green")
    parser.add_argument(
        "--bad", type=int, default=len(BAD_RATES) * len(BAD), help="rollouts with a bad green"
    )
    parser.add_argument(
        "--mitigations", type=int, default=0, help="rollouts of changes of a server with too few sequences"
    )
    parser.add_argument(
        "--history", type=int, default=3600, help="seconds of observation of blue before the rollout"
    )
    parser.add_argument(
        "--hold", type=float, default=1800.0, help="seconds of the hold step, except for a bad green"
    )
    options = parser.parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print("{:<22} {:<9} {:>4} {:>5} {:<12} {:>4} {:>9} {:>8} {:>7} {:>5}  {}".format(*HEAD))
    outcomes: list[Outcome] = []
    for case in (
        *draw_bad(options.bad),
        *draw_equal(options.rollouts, options.hold),
        *draw_mitigations(options.mitigations, options.hold),
    ):
        with tempfile.TemporaryDirectory() as home:
            outcomes.append(play(replace(case, history_s=options.history), Path(home)))
        print(line(outcomes[-1]), flush=True)
        rows = [asdict(row) | {"wrong": is_wrong(row)} for row in outcomes]
        write(options.json, {"rollouts": rows})
    named = {EQUAL.name, CURED.name, USELESS.name}
    results: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        results[outcome.green if outcome.green in named else "bad"][outcome.result] += 1
    for name, counts in results.items():
        print(f"{name}: {', '.join(f'{count} {result}' for result, count in counts.most_common())}")
    return 1 if any(map(is_wrong, outcomes)) else 0


if __name__ == "__main__":
    sys.exit(main())
