"""Measure error rates and detection times of the judge; print tables and write bench/results/judge.json.

Default: all sections. The file keeps earlier results of sections that do not run.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter

from bench.judge import buckets, clients, cost, gains, hot, hours, passing, rollouts
from bench.judge.report import table
from bench.judge.runs import Pool, Row, tabulate
from bench.judge.scenarios import LATER, NULLS, WORSE
from bench.judge.traffic import SEED
from bench.results import new_parser, write

RUNS = 1000
SECTIONS: Mapping[str, Callable[[Pool, int], Iterable[tuple[str, Row]]]] = {
    "nulls": partial(hours.measure, NULLS),
    "worse": partial(hours.measure, WORSE),
    "late": partial(hours.measure, LATER),
    "rollouts": rollouts.measure,
    "clients": clients.measure,
    "passing": passing.measure,
    "gain": gains.measure,
    "hot": hot.measure,
    "buckets": buckets.measure,
    "cost": lambda _, runs: cost.measure(max(100, runs // 4)),
}


def main() -> int:
    parser = new_parser("bench.judge", __doc__, "judge.json")
    parser.add_argument("sections", nargs="*", metavar="section", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="runs of each null scenario; other scenarios use a share of it"
    )
    options = parser.parse_args()
    if wrong := set(options.sections) - set(SECTIONS):
        parser.error(f"no section is called {', '.join(sorted(wrong))}")
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    pool = Pool()
    for name in options.sections or SECTIONS:
        begun_s = perf_counter()
        print(f"{name}:", flush=True)
        results[name] = tabulate(SECTIONS[name](pool, options.runs))
        spent_s = round(perf_counter() - begun_s, 1)
        about = results.setdefault("about", {"seed": SEED, "wall_s": {}, "runs": {}})
        about["wall_s"][name], about["runs"][name] = spent_s, options.runs
        write(options.json, results)
        print(f"  {spent_s} s\n", flush=True)
    pool.close()
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
