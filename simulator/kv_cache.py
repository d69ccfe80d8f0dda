"""The paged KV cache of one engine: blocks with reference counts, reused by the hash of their content."""

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """Free blocks are reused in order: never used first, then longest free.

    A freed block keeps its hash until it is handed out again, so that a later request with the same prefix
    reuses it. Counts are in blocks of `block_size` tokens.
    """

    def __init__(self, blocks: int, *, block_size: int = 16, caching: bool = True) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache of {blocks} blocks of {block_size} tokens: both must be at least 1")
        self.blocks = blocks
        self.block_size = block_size
        self.caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._references = [0] * blocks
        self._hash_of: list[int | None] = [None] * blocks
        self._block_with: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used_share(self) -> float:
        """Share of the blocks that requests hold, 0..1."""
        return 1 - len(self._free) / self.blocks

    def needed(self, tokens: int) -> int:
        """Return the number of blocks for `tokens`."""
        return -(-tokens // self.block_size)

    def cached(self, hashes: Sequence[int], tokens: int) -> list[int]:
        """Return the blocks of the longest cached prefix, which leaves one of `tokens` to compute."""
        if not self.caching:
            return []
        blocks: list[int] = []
        for name in hashes[: max(0, tokens - 1) // self.block_size]:
            block = self._block_with.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def idle(self, blocks: Sequence[int]) -> int:
        """Return the number of the given blocks without a holder: taking them uses up free blocks."""
        return sum(not self._references[block] for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Take a reference to blocks that `cached` returned."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out new blocks. Raises KeyError if too few are free: check `free` first."""
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            old_hash = self._hash_of[block]
            if old_hash is not None:
                del self._block_with[old_hash]
                self._hash_of[block] = None
            self._references[block] = 1
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Release a request's blocks; the end of the sequence is reused first."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def register(self, blocks: Sequence[int], hashes: Sequence[int], since: int, computed: int) -> None:
        """Name the full blocks among those computed from token `since` up to token `computed`.

        The block before `since` is tried again: the hash of produced text may come one token late.
        """
        if not self.caching:
            return
        for index in range(
            max(0, since // self.block_size - 1), min(computed // self.block_size, len(hashes))
        ):
            name, block = hashes[index], blocks[index]
            if self._hash_of[block] is None and name not in self._block_with:
                self._hash_of[block] = name
                self._block_with[name] = block
