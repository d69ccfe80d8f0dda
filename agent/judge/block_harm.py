"""A candidate that makes nearly all requests late, found in two of its blocks.

The bets need seven blocks for 100 to 1, as they assume nothing of the load. Here it is assumed that a burst
shows in the arrivals, and that pauses of the server do not begin and end with two of the candidate's blocks.
So two of its blocks are enough in which nearly all requests were bad though no more arrived than before the
trial, if a block of the present values after the first of them was good, and all blocks together show the
same. `bench.judge hot` measures how often this takes back an equal candidate.
"""

from dataclasses import replace

from flettner.agent.domain.blocks import Block, BlockTrial
from flettner.agent.judge.hard_limits import CONTROL_BAD

NEARLY_ALL = 0.65  # a block has some requests that began under the other arm
LEAST = 10  # requests of a block
ALARMS = 2


def note_result(trial: BlockTrial, block: Block) -> BlockTrial:
    """Add a finished block that is no rest."""
    of, bad = block.counts[0]
    if of < LEAST or block.crowded:
        return trial
    if block.arm == "candidate":
        return replace(trial, alarms=trial.alarms + (bad >= NEARLY_ALL * of))
    return replace(trial, spared=trial.spared or (trial.alarms > 0 and bad < CONTROL_BAD * of))


def is_harmful(trial: BlockTrial) -> bool:
    (of, bad), (was_of, was_bad) = trial.candidate, trial.present
    throughout = bad >= NEARLY_ALL * of and was_bad < CONTROL_BAD * was_of
    return trial.usual < CONTROL_BAD and trial.alarms >= ALARMS and trial.spared and throughout
