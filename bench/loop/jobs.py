"""What the processes of a benchmark do."""

import os
from dataclasses import replace

from bench.loop import real, story
from bench.loop.live_cap import in_slots
from bench.loop.score import Score, score
from bench.loop.static import Best, Goodput, best, of_start
from bench.loop.world import World


def prepare(nice: int) -> None:
    os.nice(nice)


def run(world: World, seed: int, *, real_time: bool) -> Score:
    if world.live_cap:
        return score(replace(world, live_cap=False), in_slots(story.play(world, seed)))
    return score(world, real.play(world, seed) if real_time else story.play(world, seed))


def sweep(world: World) -> tuple[Goodput, Best]:
    """The goodput of the world's own setting, and the best one."""
    return of_start(world), best(world)
