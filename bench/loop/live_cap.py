"""Worlds whose server takes another cap while it runs, with flettner's scheduler class; load and truth stay.

The server has slots for vLLM's default number of requests, and `--max-num-active-seqs` has the world's cap.
For the score both come to the same setting: a server with so many slots.
"""

from dataclasses import replace

from bench.loop.run import Run
from bench.loop.world import ACTIVE, SEQS, World
from flettner.vllm_facts.values import Setting


def has_cap_to_change(world: World) -> bool:
    """Whether a cap alone cures the world, or nothing does: other knobs need a restart."""
    return world.right is None or set(world.right) == {SEQS}


def in_slots(run: Run) -> Run:
    """The run as if the cap of each server were its number of slots."""
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
