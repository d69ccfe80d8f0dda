"""What the processes of the benchmark do.

With a live cap a server takes another cap while it runs: it has slots for vLLM's default number of requests,
and `--max-num-active-seqs` has the world's cap. For the score both come to the same setting: a server with
that number of slots.
"""

import os
from dataclasses import replace

from bench.loop import real, story
from bench.loop.run import Run
from bench.loop.score import Score, score
from bench.loop.static import Best, Goodput, best, least_gpus, of_start
from bench.loop.world import ACTIVE, SEQS, World
from flettner.vllm_facts.values import Setting


def prepare(nice: int) -> None:
    os.nice(nice)


def run(world: World, seed: int, *, real_time: bool) -> Score:
    if world.live_cap:
        return score(replace(world, live_cap=False), in_slots(story.play(world, seed)))
    return score(world, real.play(world, seed) if real_time else story.play(world, seed))


def sweep(world: World) -> tuple[Goodput, Best, int | None]:
    """Return the goodput of the world's own setting, the best one, and the GPUs that a layout needs."""
    return of_start(world), best(world), least_gpus(world) if world.gpus is not None else None


def has_cap_to_change(world: World) -> bool:
    """Return whether a cap alone cures the world, or nothing does: other knobs need a restart."""
    return world.right is None or set(world.right) == {SEQS}


def in_slots(run: Run) -> Run:
    """Return the run as if the cap of each server were its number of slots."""
    return replace(
        run,
        suggestions=tuple(
            replace(
                suggestion,
                before=_in_slots(suggestion.before),
                to=_in_slots(suggestion.to),
                in_force=_in_slots(suggestion.in_force),
            )
            for suggestion in run.suggestions
        ),
        rollouts=tuple(replace(rollout, to=_in_slots(rollout.to)) for rollout in run.rollouts),
        settings={name: _in_slots(setting) for name, setting in run.settings.items()},
    )


def _in_slots(setting: Setting) -> Setting:
    if ACTIVE not in setting:
        return setting
    rest = {knob: value for knob, value in setting.items() if knob != ACTIVE}
    cap = setting[ACTIVE]
    return rest if cap is None else {**rest, SEQS: cap}
