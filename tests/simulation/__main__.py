"""python -m tests.simulation: play histories, and shrink a failing one.

--on kubernetes    with the engine of Kubernetes over a cluster in memory
--seed 17          play one seed with its full log; shrink it if it fails
--seeds 0-19999    play a range of seeds in --processes processes for at most --for seconds
--least 200        fail unless each kind of fault fired so often, if all seeds were played
"""

import argparse
import logging
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Self

import structlog

from tests.simulation import history, scenario
from tests.simulation.history import HistoryResult
from tests.simulation.kubernetes import history as kubernetes_history
from tests.simulation.kubernetes import scenario as kubernetes_scenario
from tests.simulation.shrink import pasted, shrunk

CHUNK = 20


@dataclass(slots=True)
class Summary:
    """The totals of many histories."""

    histories: int = 0
    seconds: float = 0.0
    entries: int = 0
    starts: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, result: HistoryResult) -> None:
        self.histories += 1
        self.seconds += result.seconds
        self.entries += result.entries
        self.starts += result.starts
        self.fired += result.fired
        self.outcomes[result.outcome] += 1
        if result.violations:
            self.failed[seed] = result.violations[0]

    def __iadd__(self, other: "Summary") -> Self:
        self.histories += other.histories
        self.seconds += other.seconds
        self.entries += other.entries
        self.starts += other.starts
        self.fired += other.fired
        self.outcomes += other.outcomes
        self.failed |= other.failed
        return self


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of histories; `faults`: all that may happen in them."""

    play: Callable[[Any], HistoryResult]
    scenario_of: Callable[[int], Any]
    faults: tuple[str, ...]


KINDS = {
    "host": Kind(history.play, scenario.scenario_of, scenario.KINDS),
    "kubernetes": Kind(kubernetes_history.play, kubernetes_scenario.scenario_of, kubernetes_scenario.KINDS),
}


def chunk(on: str, seeds: range) -> Summary:
    """Play the histories of one process."""
    quiet()
    kind, summary = KINDS[on], Summary()
    for seed in seeds:
        summary.add(seed, kind.play(kind.scenario_of(seed)))
    return summary


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have the same order in every run
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--on", choices=KINDS, default="host")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0-199")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--for", type=float, default=1e9, dest="at_most_s")
    parser.add_argument("--least", type=int, default=0)
    options = parser.parse_args()
    if options.seed is not None:
        return play_seed(KINDS[options.on], options.seed)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    return many(options.on, seeds, options.processes, options.at_most_s, options.least)


def play_seed(kind: Kind, seed: int) -> int:
    quiet()
    play, result = kind.play, kind.play(kind.scenario_of(seed))
    say("\n".join(result.log))
    say(f"\n{pasted(result.scenario)}")
    if not result.violations:
        say(f"no violation: {result.outcome} after {result.seconds:.0f} s")
        return 0
    say("\n".join(result.violations))
    first = result.violations[0][:2]
    small = shrunk(result.scenario, lambda scenario: any(v[:2] == first for v in play(scenario).violations))
    say(f"\nshrunk:\n{pasted(small)}\n{play(small).violations[0]}")
    return 1


def many(on: str, seeds: range, processes: int, at_most_s: float, least: int) -> int:
    began, summary = perf_counter(), Summary()
    for part in parts(on, seeds, processes):
        summary += part
        for seed in part.failed:
            say(f"seed {seed}: {summary.failed[seed]}\n  python -m tests.simulation --on {on} --seed {seed}")
        if perf_counter() - began > at_most_s:
            break
    spent_s = perf_counter() - began
    for kind in KINDS[on].faults:
        say(f"{summary.fired[kind]:6d}  {kind}")
    say(f"{summary.starts} starts, {summary.entries} journal entries, {summary.fired.total()} faults")
    say(f"outcomes: {dict(summary.outcomes)}")
    whole = summary.histories == len(seeds)
    rare = [kind for kind in KINDS[on].faults if summary.fired[kind] < least]
    if rare:
        say(f"fired less than {least} times: {', '.join(rare)}")
    each_s, rate = summary.seconds / max(1, summary.histories), summary.histories / spent_s
    played = f"{summary.histories} of {len(seeds)} histories of {each_s:.0f} s in {spent_s:.0f} s"
    say(f"{played}, {rate:.1f} a second: {len(summary.failed)} violations")
    return 1 if summary.failed or (rare and whole) else 0


def parts(on: str, seeds: range, processes: int) -> Iterator[Summary]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if processes == 1:
        yield from map(partial(chunk, on), chunks)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(partial(chunk, on), chunks)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
