"""Fewer servers: how many a run spares against a sweep, the SLO meanwhile, and the way back.

python -m bench.saving [WORLD …] [--seeds N] [--first N] [--json FILE] runs each world of worlds.toml,
or of the files that are named, in virtual time.
"""

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from statistics import median

from bench.loop.jobs import prepare
from bench.loop.world import World, WorldError, read
from bench.results import new_parser, write
from bench.saving.score import SavingScore, run

OWN = Path(__file__).with_name("worlds.toml")
NICE = 5
BACK_WITHIN_S = 180.0


def line(result: SavingScore) -> str:
    back = "" if result.returns_s is None else f" back after {result.back_s} s"
    missed = f"{result.tens.count(False)} of {len(result.tens)} ten minutes missed"
    return (
        f"{result.world:<26} {result.seed:>3} {result.servers} servers, needs {result.least}, left "
        f"{result.running} at {result.spared_s} s;{back} {missed}, {result.lost} of {result.sent} lost, "
        f"{result.put_back_before} put back before; {'; '.join(result.suggested) or 'nothing'} "
        f"[{result.cpu_s:.0f} s]"
    )


def figures(results: Sequence[SavingScore]) -> dict[str, object]:
    """Return the goal table of the benchmark, over all runs."""
    savable = [each for each in results if each.savable]
    backs = [each for each in results if each.returns_s is not None and each.saved]
    times = [each.back_s for each in backs if each.back_s is not None]
    return {
        "runs": len(results),
        "worlds": len({each.world for each in results}),
        "servers spared, of those that the sweep spares": _of(
            sum(min(each.saved, each.savable) for each in savable), sum(each.savable for each in savable)
        ),
        "runs with fewer servers than the sweep needs": sum(each.saved > each.savable for each in results),
        "saved where all are needed": _of(*_count(each.saved > 0 for each in results if not each.savable)),
        "hours that kept the SLO": _of(*_count(met for each in results for met in each.hours)),
        "ten minutes that kept the SLO": _of(*_count(met for each in results for met in each.tens)),
        f"back within {BACK_WITHIN_S:.0f} s of the load": _of(
            sum(time <= BACK_WITHIN_S for time in times), len(backs)
        ),
        "back, s": f"median {median(times):.0f}, most {max(times):.0f}" if times else "-",
        "requests lost": _of(sum(each.lost for each in results), sum(each.sent for each in results)),
        "cpu s": round(sum(each.cpu_s for each in results)),
    }


def _count(marks: Iterable[bool]) -> tuple[int, int]:
    values = list(marks)
    return sum(values), len(values)


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"


def choose_worlds(names: Sequence[str]) -> list[World]:
    """Return the worlds of these names, or of these files. Raises WorldError."""
    own = {world.name: world for world in read(OWN)}
    if not names:
        return list(own.values())
    return [world for name in names for world in ([own[name]] if name in own else read(Path(name)))]


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("bench.saving", __doc__, "saving.json")
    parser.add_argument("worlds", nargs="*", help="names of worlds, or files of them; default: worlds.toml")
    parser.add_argument("--seeds", type=int, help="runs of each world; default: as the world says")
    parser.add_argument("--first", type=int, help="seed of the first run; default: as the world says")
    options = parser.parse_args(argv)
    try:
        worlds = choose_worlds(options.worlds)
    except WorldError as error:
        parser.error(str(error))
    prepared = partial(
        ProcessPoolExecutor, mp_context=get_context("spawn"), initializer=prepare, initargs=(NICE,)
    )
    results: list[SavingScore] = []
    with prepared(cpu_count()) as pool:
        waiting = [
            pool.submit(run, world, (world.seed if options.first is None else options.first) + number)
            for world in worlds
            for number in range(options.seeds or world.seeds)
        ]
        for done in as_completed(waiting):
            results.append(done.result())
            print(line(results[-1]), flush=True)
    results.sort(key=lambda result: (result.world, result.seed))
    table = figures(results)
    write(options.json, {"figures": table, "runs": [asdict(result) for result in results]})
    print("\n".join(f"{what:<50} {value}" for what, value in table.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
