"""Which block a request counts for, and when the next block begins.

Counts come when requests end, without the time of their start. Requests end roughly in the order of their
start, so with F requests in flight when a block begins the next F that end count for the block before it.
What begins while these drain waits behind their queue, if they had one, and is left out. All rules are the
same for both arms, and whether the arm changes or not, so what they get wrong hides a difference and makes
none.

A block in which half of the requests are bad, where few were before the trial, ends at once, whichever arm
is on: a rule that knows the arm would prefer one. The present arm is on, without evidence, until the queue
is gone.
"""

from dataclasses import replace

from agent.domain.blocks import BadOf, Block, BlockMeasure, BlockSecond, BlockTrial
from agent.domain.model import Slo
from agent.domain.request_counts import RequestCounts
from agent.judge.block_schedule import draw_block
from agent.judge.failure_modes import count_bad
from agent.judge.goodput import BUSIER, count_missed
from agent.judge.hard_limits import BAD, CONTROL_BAD

GOODPUT = "goodput"
WASH_OUT_S = 2.0  # until each engine has read the new values
COUNTED_LEAST_S = 8.0  # of a block
DRAIN_AT_MOST_S = 30.0  # then a block counts, whatever the block before has left behind
CUT_REQUESTS = 10
REST_LEAST_S, REST_AT_MOST_S = 5.0, 60.0


def add_second(trial: BlockTrial, second: BlockSecond, slo: Slo) -> BlockTrial:
    """Add one admissible second; begin the next block where one ends."""
    in_flight = _in_flight(second)
    if not trial.blocks:
        behind = 2 if _is_queued(second) else 1
        return replace(_begin_block(trial), skip=behind * in_flight, in_flight=in_flight)
    in_force, before = second.in_force == trial.arm, trial.in_flight
    trial = replace(_attribute(trial, second, slo), in_flight=in_flight)
    if not in_force:
        return trial
    arrived = max(0, _ended(second) + in_flight - before)
    trial = _with_block(trial, -1, replace(trial.blocks[-1], arrived=trial.blocks[-1].arrived + arrived))
    if trial.blocks[-1].rest:
        return _rest(trial, second)
    counts_now = _is_on_its_own(trial) and trial.on_s >= WASH_OUT_S
    trial = replace(
        trial,
        on_s=trial.on_s + 1.0,
        counted_s=trial.counted_s + (counts_now or trial.on_s >= DRAIN_AT_MOST_S),
        valid_s=trial.valid_s + 1.0,
    )
    over = trial.on_s >= trial.length_s and trial.counted_s >= COUNTED_LEAST_S
    if _is_far_worse(trial):
        rest = Block(arm="present", rest=True)
        return _follow(replace(_end_block(trial, second), arm="present"), rest)
    return _begin_block(_end_block(trial, second)) if over else trial


def _rest(trial: BlockTrial, second: BlockSecond) -> BlockTrial:
    trial = replace(trial, on_s=trial.on_s + 1.0, valid_s=trial.valid_s + 1.0)
    if trial.on_s < REST_LEAST_S or (_is_queued(second) and trial.on_s < REST_AT_MOST_S):
        return trial
    return _begin_block(_end_block(trial, second))


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
    ended = _ended(second)
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
    blocks = list(trial.blocks)
    blocks[number] = block
    return replace(trial, blocks=tuple(blocks))


def _is_on_its_own(trial: BlockTrial) -> bool:
    """Whether the requests of earlier blocks have ended."""
    return all(block.left == 0 for block in trial.blocks[:-1]) and not trial.skip


def _is_far_worse(trial: BlockTrial) -> bool:
    now = trial.blocks[-1]
    of, bad = now.counts[0] if now.counts else (0, 0)
    return trial.usual < CONTROL_BAD and of >= CUT_REQUESTS and bad >= BAD * of


def _ended(second: BlockSecond) -> int:
    return second.counts.total + second.counts.refused + second.counts.gave_up


def _in_flight(second: BlockSecond) -> int:
    return round(sum(pulse.running + pulse.waiting for pulse in second.pulses))


def _is_queued(second: BlockSecond) -> bool:
    return any(pulse.waiting for pulse in second.pulses)


def _begin_block(trial: BlockTrial) -> BlockTrial:
    """What is in flight is handled alike whether the arm changes or not: see above."""
    number = trial.number + 1
    arm, by_lot, length_s = draw_block(trial.seed, number, trial.last, trial.run)
    run = trial.run + 1 if arm == trial.last else 1
    trial = replace(trial, arm=arm, number=number, last=arm, run=run, length_s=length_s)
    return _follow(trial, Block(arm=arm, by_lot=by_lot))


def _follow(trial: BlockTrial, block: Block) -> BlockTrial:
    return replace(trial, on_s=0.0, counted_s=0.0, blocks=(*trial.blocks, block))


def _end_block(trial: BlockTrial, second: BlockSecond) -> BlockTrial:
    """Requests of still earlier blocks count for the one that ends: few last that long."""
    earlier = (replace(block, left=0) for block in trial.blocks[:-1])
    busy = trial.usual_rps > 0 and trial.blocks[-1].arrived > BUSIER * trial.usual_rps * trial.on_s
    ended = replace(trial.blocks[-1], left=_in_flight(second), busy=busy)
    return replace(trial, blocks=(*earlier, ended), queued=_is_queued(second), skip=0)
