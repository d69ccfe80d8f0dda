"""Upgrades to releases with and without seeded regressions; see the package.

python -m bench.upgrades [RELEASE …] [--engine virtual|process|docker|kubernetes …] [--seeds N] [--json FILE]
prints a line for each upgrade and a table, and writes both as JSON. `docker` needs an Engine (scripts/engine
with …), `kubernetes` root and the programs of an API server (scripts/kubernetes install).
--add keeps the upgrades of an earlier run in FILE. It exits 1 if an upgrade is wrong or a request is lost.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict

from bench.results import new_parser, write
from bench.upgrades import real, virtual
from bench.upgrades.releases import Release, choose
from bench.upgrades.report import Upgrade, line, table
from bench.upgrades.sites import SITES

ENGINES = ("virtual", *SITES)


def run_all(options: argparse.Namespace, releases: Sequence[Release]) -> Iterator[Upgrade]:
    if "virtual" in options.engine:
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, mp_context=spawned) as pool:
            yield from pool.map(virtual.run, virtual.draw_runs(releases, options.seeds, options.hold))
    for engine in SITES:
        if engine in options.engine:
            with asyncio.Runner() as runner:
                upgrades = real.upgrade_in_turn(engine, releases, options.seeds)
                while (upgrade := runner.run(anext(upgrades, None))) is not None:
                    yield upgrade


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("bench.upgrades", __doc__, "upgrades.json")
    parser.add_argument("releases", nargs="*", help="names of releases; default: all")
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=["virtual"])
    parser.add_argument("--seeds", type=int, default=1, help="rounds over all releases")
    parser.add_argument(
        "--hold", type=float, default=1800.0, help="seconds of the virtual hold step, doubled"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="virtual runs at once")
    parser.add_argument("--add", action="store_true", help="keep the upgrades that the file has")
    options = parser.parse_args(argv)
    try:
        releases = choose(options.releases)
    except ValueError as error:
        parser.error(str(error))
    upgrades: list[Upgrade] = []
    if options.add and options.json.exists():
        upgrades += [Upgrade(**row) for row in json.loads(options.json.read_text())["upgrades"]]
    for upgrade in run_all(options, releases):
        upgrades.append(upgrade)
        print(line(upgrade), flush=True)
        write(options.json, {"upgrades": [asdict(row) for row in upgrades]})
    print(table(upgrades, choose(())))
    return int(any(not upgrade.right or upgrade.lost for upgrade in upgrades))


if __name__ == "__main__":
    sys.exit(main())
