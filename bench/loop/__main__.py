"""The complete loop on worlds: what is suggested, what comes of it, and what it is worth.

python -m bench.loop [WORLD.json …] [--real] [--seeds N] [--json FILE] runs each world with that many seeds,
prints a line for each run and the figures of all, and writes both as JSON.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from bench.loop.jobs import prepare, run, sweep
from bench.loop.live_cap import has_cap_to_change
from bench.loop.report import document, line, table
from bench.loop.score import Score
from bench.loop.static import best, flaw
from bench.loop.world import World, WorldError, read

NICE = 5
OWN = Path(__file__).parent / "worlds"


def _pool(workers: int, *, alone: bool = False) -> ProcessPoolExecutor:
    """Leave the machine usable. `alone`: a new process for each run, as ports are chosen by its pid."""
    spawned = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        workers,
        mp_context=spawned,
        initializer=prepare,
        initargs=(0 if alone else NICE,),
        max_tasks_per_child=1 if alone else None,
    )


def check(pool: ProcessPoolExecutor, worlds: Sequence[World]) -> int:
    """Print whether each world is what it says; 1 if one is not."""
    wrong = 0
    for world, (own, found) in zip(worlds, pool.map(sweep, worlds), strict=True):
        why = flaw(world, own, found)
        wrong += bool(why)
        print(
            f"{world.name:<20} {own.whole:.3f} -> {found.goodput.whole:.3f}, end {own.tail:.3f} -> "
            f"{found.goodput.tail:.3f} with {dict(found.change)} of {found.tried}: {why or 'ok'}",
            flush=True,
        )
    return int(wrong > 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loop", description=__doc__)
    parser.add_argument("worlds", nargs="*", type=Path, help="worlds; default: those of bench/loop/worlds")
    parser.add_argument("--seeds", type=int, help="runs of each world; default: as the world says")
    parser.add_argument("--real", action="store_true", help="real processes in real time")
    parser.add_argument("--workers", type=int, help="runs at once; default: the cores, 3 with --real")
    parser.add_argument("--json", type=Path, default=Path("bench/results/loop.json"))
    parser.add_argument(
        "--model", choices=("off", "on", "alone"), help="the policy `model`, beside the rules or alone"
    )
    parser.add_argument(
        "--live-cap", action="store_true", help="the cap changes while the server runs, without a green"
    )
    parser.add_argument("--mode", choices=("approve", "auto"), help="instead of the mode of each world")
    parser.add_argument("--check", action="store_true", help="only check the worlds with the sweep")
    options = parser.parse_args(argv)
    try:
        worlds = [read(path) for path in options.worlds or sorted(OWN.glob("*.json"))]
        if options.live_cap:
            worlds = [replace(world, live_cap=True) for world in worlds if has_cap_to_change(world)]
        if options.real and not options.worlds:
            worlds = [world for world in worlds if world.real]
        worlds = [replace(world, model=options.model) for world in worlds] if options.model else worlds
        worlds = [replace(world, mode=options.mode) for world in worlds] if options.mode else worlds
    except WorldError as error:
        parser.error(str(error))
    if options.real and options.live_cap:
        parser.error("--live-cap: only in virtual time")
    scores: list[Score] = []
    with _pool(os.cpu_count() or 1) as pool:
        if options.check:
            return check(pool, worlds)
        list(pool.map(best, [replace(world, live_cap=False) for world in worlds]))
    seeds = options.seeds or (1 if options.real else 0)
    with _pool(options.workers or (3 if options.real else os.cpu_count() or 1), alone=options.real) as pool:
        waiting = [
            pool.submit(run, world, world.seed + number, real_time=options.real)
            for world in worlds
            for number in range(seeds or world.seeds)
        ]
        for done in as_completed(waiting):
            scores.append(done.result())
            print(line(scores[-1]), flush=True)
    scores.sort(key=lambda one: (one.world, one.seed))
    told = document(scores)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(told, indent=1, default=str), encoding="utf-8")
    print(table(scores))
    return int(any(one.missed for one in scores))


if __name__ == "__main__":
    sys.exit(main())
