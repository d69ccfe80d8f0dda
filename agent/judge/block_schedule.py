"""Which arm is on, and for how long: drawn by lot, for each block alone.

Lengths vary, so that no periodic load stays in step with the blocks. The first blocks are short: a large
effect shows in them, and a block doubles the evidence at most, however long it is. Of longer ones a smaller
part is left out after the switch. Where requests take long, each block is as long as they need
(agent/judge/block_counting.py).
"""

import hashlib

from flettner.agent.domain.blocks import Arm

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
