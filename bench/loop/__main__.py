"""python -m bench.loop WORLD.json… [--seeds N] [--json FILE]"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from bench.loop.report import document, line, table
from bench.loop.score import Score, score
from bench.loop.static import best
from bench.loop.story import play
from bench.loop.world import World, WorldError, read

NICE = 10
OWN = Path(__file__).parent / "worlds"


def run(world: World, seed: int) -> Score:
    return score(world, play(world, seed))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loop", description=__doc__)
    parser.add_argument("worlds", nargs="*", type=Path, help="worlds; default: those of bench/loop/worlds")
    parser.add_argument("--seeds", type=int, help="runs of each world; default: as the world says")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--json", type=Path, default=Path("bench/results/loop.json"))
    options = parser.parse_args(argv)
    try:
        worlds = [read(path) for path in options.worlds or sorted(OWN.glob("*.json"))]
    except WorldError as error:
        parser.error(str(error))
    scores: list[Score] = []
    with ProcessPoolExecutor(options.workers, initializer=os.nice, initargs=(NICE,)) as pool:
        list(pool.map(best, worlds))
        waiting = [
            pool.submit(run, world, world.seed + number)
            for world in worlds
            for number in range(options.seeds or world.seeds)
        ]
        for done in as_completed(waiting):
            scores.append(done.result())
            print(line(scores[-1]), flush=True)
    scores.sort(key=lambda one: (one.world, one.seed))
    told = document(scores)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(told, indent=1, default=str), encoding="utf-8")
    print(table(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
