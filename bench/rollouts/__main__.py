"""Full rollouts of equal and bad greens in virtual time.

python -m bench.rollouts [--rollouts N] [--bad N] [--json FILE] prints a line for each and writes JSON;
with --real [--engine sim|vllm] the daemon, Envoy and the servers are processes. Exits 1 if an equal green
is rolled back as worse, or a bad one is not.
"""

import argparse
import json
import logging
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from itertools import cycle, islice
from pathlib import Path

import structlog

from bench.rollouts import real
from bench.rollouts.cases import BAD, CALM, EQUAL, PROFILES, SERVICES
from bench.rollouts.story import DEFAULT, Case, Told, tell

BAD_RATES = (8.0, 2.0, 30.0)
HEAD = ("GREEN", "PROFILE", "RPS", "SEED", "RESULT", "AT", "VERDICT s", "ONSET s", "EXPOSED", "BAD", "WHY")


def equal_ones(count: int, hold_s: float) -> Iterator[Case]:
    """Yield all rates with all profiles, repeatedly."""
    *steps, hold = DEFAULT.steps
    plan = replace(DEFAULT, steps=(*steps, replace(hold, at_least_s=hold_s)))
    kinds = cycle([(rate, profile) for profile in PROFILES for rate in SERVICES])
    for seed, (rate, profile) in enumerate(islice(kinds, count)):
        yield Case(seed=seed, rate=rate, profile=profile, green=EQUAL, plan=plan)


def bad_ones(count: int) -> Iterator[Case]:
    """Yield all kinds at the first rate, then at the next."""
    kinds = cycle([(rate, green) for rate in BAD_RATES for green in BAD])
    for seed, (rate, green) in enumerate(islice(kinds, count)):
        yield Case(seed=1000 + seed, rate=rate, profile=CALM, green=green)


def told(cases: Iterable[Case]) -> Iterator[Told]:
    for case in cases:
        with tempfile.TemporaryDirectory() as home:
            yield tell(case, Path(home))


def line(one: Told) -> str:
    said = (
        f"{one.green:<22} {one.profile:<9} {one.rate:>4g} {one.seed:>5} {one.result:<12} {one.weight:>3}% "
        f"{_number(one.verdict_s):>9} {_number(one.after_onset_s):>8} {one.exposed:>7} {one.bad_exposed:>5}"
    )
    return f"{said}  {one.why[:110]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def wrong(one: Told) -> bool:
    return (one.result == "rolled_back") is (one.green == EQUAL.name)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rollouts", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=32, help="rollouts with an equal green")
    parser.add_argument(
        "--bad", type=int, default=len(BAD_RATES) * len(BAD), help="rollouts with a bad green"
    )
    parser.add_argument(
        "--history", type=int, default=3600, help="seconds of observation of blue before the rollout"
    )
    parser.add_argument(
        "--hold", type=float, default=1800.0, help="seconds of the hold step of an equal green"
    )
    parser.add_argument("--real", action="store_true", help="use real processes in real time")
    parser.add_argument("--engine", choices=("sim", "vllm"), default="sim", help="engine of --real")
    parser.add_argument("--parallel", type=int, default=1, help="concurrent sites of --real")
    parser.add_argument("--json", type=Path, default=Path("bench/results/rollouts.json"))
    options = parser.parse_args(argv)
    options.json.parent.mkdir(exist_ok=True)
    return in_real_time(options) if options.real else in_no_time(options)


def in_real_time(options: argparse.Namespace) -> int:
    cases = real.cases(options.engine, options.rollouts, options.bad)
    rows: list[real.Told] = []
    # Ports are allocated per process; a new process each time avoids ports still in TIME_WAIT.
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.parallel, mp_context=spawned, max_tasks_per_child=1) as pool:
        told = {pool.submit(real.tell, case): case for case in cases}
        for future in as_completed(told):
            try:
                rows.append(future.result())
            except AssertionError as error:  # a timeout of the rig
                print(f"{told[future].green}: {error}", flush=True)
                continue
            print(real.line(rows[-1]), flush=True)
            options.json.write_text(json.dumps(real.document(rows), indent=2) + "\n")
    return 1 if len(rows) < len(told) or any(map(real.wrong, rows)) else 0


def in_no_time(options: argparse.Namespace) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print("{:<22} {:<9} {:>4} {:>5} {:<12} {:>4} {:>9} {:>8} {:>7} {:>5}  {}".format(*HEAD))
    rows: list[Told] = []
    cases = (*bad_ones(options.bad), *equal_ones(options.rollouts, options.hold))
    for one in told(replace(case, history_s=options.history) for case in cases):
        rows.append(one)
        print(line(one), flush=True)
        document = {"rollouts": [asdict(row) | {"wrong": wrong(row)} for row in rows]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    for name in ("equal", "bad"):
        results = Counter(row.result for row in rows if (row.green == EQUAL.name) is (name == "equal"))
        print(f"{name}: {', '.join(f'{count} {result}' for result, count in results.most_common())}")
    return 1 if any(map(wrong, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
