"""Which block a request counts for, and when the next block begins.

Counts come when requests end, without the time of their begin. Requests end roughly in the order of their
begin, so with F requests in flight at a block's begin the next F that end count for the block before it. What
begins while these drain waits behind their queue, if they had one, and is left out. All rules are the same
for both arms, and whether the arm changes or not, so what they get wrong hides a difference and makes none.

A block in which half of the requests are bad, where few were before the trial, ends at once, whichever arm
is on: a rule that knows the arm would prefer one.
"""

from dataclasses import replace

from agent.domain.blocks import BadOf, Block, BlockMeasure, BlockSecond, BlockTrial
from agent.domain.model import Slo
from agent.domain.request_counts import RequestCounts
from agent.judge.block_schedule import draw_block
from agent.judge.failure_modes import count_bad
from agent.judge.goodput import count_missed
from agent.judge.hard_limits import BAD, CONTROL_BAD

GOODPUT = "goodput"
WASH_OUT_S = 2.0  # until each engine has read the new values
COUNTED_LEAST_S = 8.0  # of a block
DRAIN_AT_MOST_S = 30.0  # then a block counts, whatever the block before has left behind
CUT_REQUESTS = 10


def add_second(trial: BlockTrial, second: BlockSecond, slo: Slo) -> BlockTrial:
    """Add one admissible second; begin the next block where one ends."""
    if not trial.blocks:
        behind = 2 if _is_queued(second) else 1
        return replace(_begin_block(trial), skip=behind * _in_flight(second))
    in_force = second.in_force == trial.arm
    trial = _attribute(trial, second, slo)
    if not in_force:
        return trial
    counts_now = _is_on_its_own(trial) and trial.on_s >= WASH_OUT_S
    trial = replace(
        trial,
        on_s=trial.on_s + 1.0,
        counted_s=trial.counted_s + (counts_now or trial.on_s >= DRAIN_AT_MOST_S),
        valid_s=trial.valid_s + 1.0,
    )
    over = trial.on_s >= trial.length_s and trial.counted_s >= COUNTED_LEAST_S
    if not over and not _is_far_worse(trial):
        return trial
    return _end_block(trial, _in_flight(second), queued=_is_queued(second))


def drop_blocks(trial: BlockTrial) -> BlockTrial:
    """Leave out the blocks without a result, and return to the present arm."""
    return replace(trial, arm="present", run=0, blocks=(), skip=0, on_s=0.0, counted_s=0.0)


def take_finished(trial: BlockTrial) -> tuple[BlockTrial, Block | None]:
    """The oldest block, if all of its requests have ended."""
    first, *later = trial.blocks or (None,)
    return (replace(trial, blocks=tuple(later)), first) if first and first.left == 0 else (trial, None)


def count_measure(counts: RequestCounts, measure: BlockMeasure, slo: Slo) -> BadOf:
    """(requests, bad requests) by this measure."""
    if measure.name == GOODPUT:
        return count_missed(counts)
    return count_bad(counts, measure.name, measure.edge_s, slo, alone=True)


def _attribute(trial: BlockTrial, second: BlockSecond, slo: Slo) -> BlockTrial:
    ended = second.counts.total + second.counts.refused + second.counts.gave_up
    oldest = next((n for n, block in enumerate(trial.blocks) if block.left != 0), len(trial.blocks) - 1)
    block = trial.blocks[oldest]
    if block.left is None:
        if trial.skip > 0 and trial.on_s < DRAIN_AT_MOST_S:
            return replace(trial, skip=max(0, trial.skip - ended))
        if trial.on_s < WASH_OUT_S:
            return trial
    added = _add(block, second.counts, trial.measures, slo)
    if block.left is None:
        return _with_block(trial, oldest, added)
    trial = _with_block(trial, oldest, replace(added, left=max(0, block.left - ended)))
    if trial.queued and _is_on_its_own(trial):
        return replace(trial, queued=False, skip=_in_flight(second))
    return trial


def _add(block: Block, counts: RequestCounts, measures: tuple[BlockMeasure, ...], slo: Slo) -> Block:
    before = block.counts or ((0, 0),) * len(measures)
    now = (count_measure(counts, measure, slo) for measure in measures)
    return replace(
        block, counts=tuple((n + of, k + bad) for (n, k), (of, bad) in zip(before, now, strict=True))
    )


def _with_block(trial: BlockTrial, number: int, block: Block) -> BlockTrial:
    return replace(trial, blocks=(*trial.blocks[:number], block, *trial.blocks[number + 1 :]))


def _is_on_its_own(trial: BlockTrial) -> bool:
    """Whether the requests of earlier blocks have ended."""
    return all(block.left == 0 for block in trial.blocks[:-1]) and not trial.skip


def _is_far_worse(trial: BlockTrial) -> bool:
    now = trial.blocks[-1]
    of, bad = now.counts[0] if now.counts else (0, 0)
    return trial.usual < CONTROL_BAD and of >= CUT_REQUESTS and bad >= BAD * of


def _in_flight(second: BlockSecond) -> int:
    return round(sum(pulse.running + pulse.waiting for pulse in second.pulses))


def _is_queued(second: BlockSecond) -> bool:
    return any(pulse.waiting for pulse in second.pulses)


def _begin_block(trial: BlockTrial) -> BlockTrial:
    """What is in flight is handled alike whether the arm changes or not: see above."""
    number = trial.number + 1
    arm, by_lot, length_s = draw_block(trial.seed, number, trial.arm, trial.run)
    return replace(
        trial,
        arm=arm,
        number=number,
        run=trial.run + 1 if arm == trial.arm else 1,
        length_s=length_s,
        on_s=0.0,
        counted_s=0.0,
        blocks=(*trial.blocks, Block(arm=arm, by_lot=by_lot)),
    )


def _end_block(trial: BlockTrial, in_flight: int, *, queued: bool) -> BlockTrial:
    """Requests of still earlier blocks count for the one that ends: few last that long."""
    earlier = (replace(block, left=0) for block in trial.blocks[:-1])
    ended = replace(trial.blocks[-1], left=in_flight)
    return _begin_block(replace(trial, blocks=(*earlier, ended), queued=queued, skip=0))
