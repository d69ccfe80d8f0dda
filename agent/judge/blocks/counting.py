"""Which block a request counts for, and when the next block begins.

Counts come when requests end, without the time of their start. Requests end roughly in the order of their
start, so with F requests in flight when a block begins the next F that end count for the block before it.
What begins while these drain waits behind their queue, if they had one, and is left out. A queue that does
not get shorter is not waited for: what it makes late then counts for the block that is on. All rules are the
same for both arms, and whether the arm changes or not, so what they get wrong hides a difference and makes
none.

A block in which half of the requests are bad, where few were before the trial, ends at once, whichever arm
is on: a rule that knows the arm would prefer one. The present arm is on, without evidence, until the queue
is gone.

The arm and the length of each block are drawn by lot, for each block alone. Lengths vary, so that no periodic
load stays in step with the blocks. The first blocks are short: a large effect shows in them, and a block
doubles the evidence at most, however long it is. Of longer blocks a smaller part is left out after the
switch. Where requests take long, each block is as long as they need.
"""

import hashlib
from dataclasses import replace
from math import sqrt

from flettner.agent.domain.blocks import Arm, BadOf, Block, BlockMeasure, BlockSecond, BlockTrial
from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import BUSIER, count_missed
from flettner.agent.judge.failure_modes import count_bad
from flettner.agent.judge.hard_limits import BAD, CONTROL_BAD

GOODPUT = "goodput"
WASH_OUT_S = 2.0  # until each engine has read the new values
COUNTED_LEAST_S = 5.0  # of a block
DRAIN_AT_MOST_S = 60.0  # then a block counts, whatever the block before has left behind
QUEUE_AT_MOST_S = 6.0  # the same for a queue that does not get shorter
CUT_REQUESTS = 10
CROWD = 2.0  # standard deviations of Poisson arrivals
REST_LEAST_S, REST_AT_MOST_S = 5.0, 60.0
SHORT_S, LONG_S = (10.0, 14.0), (30.0, 60.0)
SHORT_BLOCKS = 12  # about as many as the proof of a large harm takes
MOST_IN_A_ROW = 3  # then the other arm follows, without a lot: 6 of 7 blocks are drawn


def draw_block(seed: str, number: int, last: Arm, run: int) -> tuple[Arm, bool, float]:
    """The arm of a block, whether it was drawn, and its length in seconds.

    `last`, `run`: the arm of the block before, and how many had it in a row. The lots are bits of a hash, so
    that the journal explains each of them.
    """
    lots = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    shortest_s, longest_s = SHORT_S if number <= SHORT_BLOCKS else LONG_S
    length_s = round(shortest_s + (longest_s - shortest_s) * int.from_bytes(lots[1:3]) / 0xFFFF, 1)
    if run >= MOST_IN_A_ROW:
        return ("present" if last == "candidate" else "candidate"), False, length_s
    return ("candidate" if lots[0] & 1 else "present"), True, length_s


def add_second(trial: BlockTrial, second: BlockSecond, slo: Slo) -> BlockTrial:
    """Add one admissible second; begin the next block where one ends."""
    in_flight = _in_flight(second)
    if not trial.blocks:
        behind = 2 if _waiting(second) > 0 else 1
        begun = _begin_block(trial, second)
        return replace(begun, skip=behind * in_flight, in_flight=in_flight)
    in_force, before = second.in_force == trial.arm, trial.in_flight
    trial = replace(_attribute(trial, second, slo), in_flight=in_flight)
    if not in_force:
        return trial
    trial = _close_earlier(trial, second)
    arrived = max(0, _ended(second) + in_flight - before)
    trial = _with_block(trial, -1, replace(trial.blocks[-1], arrived=trial.blocks[-1].arrived + arrived))
    if trial.blocks[-1].rest:
        return _rest(trial, second)
    counts_now = _is_on_its_own(trial) and trial.on_s >= WASH_OUT_S
    trial = replace(
        trial,
        on_s=trial.on_s + 1.0,
        counted_s=trial.counted_s + counts_now,
        valid_s=trial.valid_s + 1.0,
    )
    over = trial.on_s >= trial.length_s and trial.counted_s >= COUNTED_LEAST_S
    if _is_far_worse(trial):
        rest = Block(arm="present", rest=True)
        return _follow(replace(_end_block(trial, second), arm="present"), rest, second)
    return _begin_block(_end_block(trial, second), second) if over else trial


def _close_earlier(trial: BlockTrial, second: BlockSecond) -> BlockTrial:
    """End the wait for what earlier blocks left behind, after which it counts for the block that is on.

    What ran at the block's begin is waited for; a queue only while it drains.
    """
    lasting = not trial.ran and _waiting(second) >= trial.waited
    over = trial.on_s >= DRAIN_AT_MOST_S or (trial.on_s >= QUEUE_AT_MOST_S and lasting)
    if not over or _is_on_its_own(trial):
        return trial
    *earlier, now = trial.blocks
    return replace(trial, blocks=(*(replace(block, left=0) for block in earlier), now), skip=0, queued=False)


def _rest(trial: BlockTrial, second: BlockSecond) -> BlockTrial:
    trial = replace(trial, on_s=trial.on_s + 1.0, valid_s=trial.valid_s + 1.0)
    if trial.on_s < REST_LEAST_S or (_waiting(second) > 0 and trial.on_s < REST_AT_MOST_S):
        return trial
    return _begin_block(_end_block(trial, second), second)


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
    trial = replace(trial, ran=max(0, trial.ran - ended))
    oldest = next((n for n, block in enumerate(trial.blocks) if block.left != 0), len(trial.blocks) - 1)
    block = trial.blocks[oldest]
    if block.left is None:
        if trial.skip > 0:
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
    return round(sum(engine.running + engine.waiting for engine in second.engines))


def _waiting(second: BlockSecond) -> int:
    return round(sum(engine.waiting for engine in second.engines))


def _begin_block(trial: BlockTrial, second: BlockSecond) -> BlockTrial:
    """What is in flight is handled alike whether the arm changes or not: see above."""
    number = trial.number + 1
    arm, by_lot, length_s = draw_block(trial.seed, number, trial.last, trial.run)
    run = trial.run + 1 if arm == trial.last else 1
    trial = replace(trial, arm=arm, number=number, last=arm, run=run, length_s=length_s)
    return _follow(trial, Block(arm=arm, by_lot=by_lot), second)


def _follow(trial: BlockTrial, block: Block, second: BlockSecond) -> BlockTrial:
    ran = round(sum(engine.running for engine in second.engines))
    blocks = (*trial.blocks, block)
    return replace(trial, on_s=0.0, counted_s=0.0, ran=ran, waited=_waiting(second), blocks=blocks)


def _end_block(trial: BlockTrial, second: BlockSecond) -> BlockTrial:
    """End the block that runs. Requests of earlier blocks count for it: few last that long."""
    earlier = (replace(block, left=0) for block in trial.blocks[:-1])
    now, usual = trial.blocks[-1], BUSIER * trial.usual_rps * trial.on_s
    ended = replace(
        now,
        left=_in_flight(second),
        busy=0 < usual < now.arrived,
        crowded=now.arrived > usual + CROWD * sqrt(usual),
    )
    return replace(trial, blocks=(*earlier, ended), queued=_waiting(second) > 0, skip=0)
