"""The complete loop on worlds: what is suggested, what comes of it, and what it is worth.

python -m bench.loop [WORLD …] [--real] [--seeds N] [--first N] [--json FILE] runs each world with that many
seeds, prints a line for each run and the figures of all, and writes both as JSON.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from bench.loop.jobs import has_cap_to_change, prepare, run, sweep
from bench.loop.report import document, line, table
from bench.loop.score import Score
from bench.loop.static import best, flaw
from bench.loop.world import OWN, World, WorldError, read
from bench.results import new_parser, write

NICE = 5


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
    for world, (own, cure, gpus) in zip(worlds, pool.map(sweep, worlds), strict=True):
        why = flaw(world, own, cure) if gpus is None else ""
        wrong += bool(why)
        needs = "" if gpus is None else f", {gpus} GPUs keep the SLO"
        print(
            f"{world.name:<20} {own.whole:.3f} -> {cure.goodput.whole:.3f}, end {own.tail:.3f} -> "
            f"{cure.goodput.tail:.3f} with {dict(cure.change)} of {cure.tried}{needs}: {why or 'ok'}",
            flush=True,
        )
    return int(wrong > 0)


def choose_worlds(options: argparse.Namespace) -> Iterator[World]:
    """Raises WorldError."""
    own = {world.name: world for world in read(OWN)}
    worlds = [own[name] for name in options.worlds if name in own]
    for name in options.worlds:
        worlds += read(Path(name)) if name not in own else ()
    for world in worlds or own.values():
        if options.live_cap and not has_cap_to_change(world):
            continue
        if options.real and not options.worlds and not world.real:
            continue
        if options.real and world.shared_card is not None:
            raise WorldError(f"{world.name}: shared_card exists in virtual time only: run it without --real")
        yield replace(
            world,
            live_cap=options.live_cap,
            seed=world.seed if options.first is None else options.first,
            model=options.model or world.model,
            mode=options.mode or world.mode,
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("bench.loop", __doc__, "loop.json")
    parser.add_argument("worlds", nargs="*", help="names of worlds, or files of them; default: worlds.toml")
    parser.add_argument("--seeds", type=int, help="runs of each world; default: as the world says")
    parser.add_argument("--first", type=int, help="seed of the first run; default: as the world says")
    parser.add_argument("--real", action="store_true", help="real processes in real time")
    parser.add_argument("--workers", type=int, help="runs at once; default: the cores, 3 with --real")
    parser.add_argument(
        "--model", choices=("off", "on", "alone"), help="the policy `model`, beside the rules or alone"
    )
    parser.add_argument(
        "--live-cap", action="store_true", help="the cap changes while the server runs, without a green"
    )
    parser.add_argument("--mode", choices=("approve", "auto"), help="instead of the mode of each world")
    parser.add_argument("--check", action="store_true", help="only check the worlds with the sweep")
    options = parser.parse_args(argv)
    if options.real and options.live_cap:
        parser.error("--live-cap: only in virtual time")
    try:
        worlds = list(choose_worlds(options))
    except WorldError as error:
        parser.error(str(error))
    cores = os.cpu_count() or 1
    with _pool(cores) as pool:
        if options.check:
            return check(pool, worlds)
        list(pool.map(best, [replace(world, live_cap=False) for world in worlds]))
    seeds = options.seeds or (1 if options.real else 0)
    scores: list[Score] = []
    with _pool(options.workers or (3 if options.real else cores), alone=options.real) as pool:
        waiting = [
            pool.submit(run, world, world.seed + number, real_time=options.real)
            for world in worlds
            for number in range(seeds or world.seeds)
        ]
        for done in as_completed(waiting):
            scores.append(done.result())
            print(line(scores[-1]), flush=True)
    scores.sort(key=lambda score: (score.world, score.seed))
    write(options.json, document(scores))
    print(table(scores))
    return int(any(score.missed for score in scores))


if __name__ == "__main__":
    sys.exit(main())
