"""The KV cache as counts of blocks, and the shared prefixes that free blocks still hold.

vLLM keeps free blocks in a queue: freed blocks join its end, the last block of a request first; new ones
are taken from its front; a block keeps its content until then. The queue is stored as runs of equal blocks,
so a call costs the number of runs it touches, not of blocks.
"""

from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Run:
    """Adjacent blocks of the queue; `prefix`: whose content they hold."""

    count: int
    prefix: "Prefix | None" = None


@dataclass(slots=True, eq=False)
class Prefix:
    """The leading blocks that requests have in common. The first `held` are in use; `idle` runs hold the
    rest.

    The newest idle run holds the blocks nearest to the begin, so the queue consumes a prefix from its end.
    """

    available: int = 0
    held: int = 0
    users: Counter[int] = field(default_factory=Counter)  # how many hold so many blocks
    idle: list[Run] = field(default_factory=list)


class BlockPool:
    """`free` counts idle blocks too, as vLLM does."""

    def __init__(self, blocks: int, *, caching: bool) -> None:
        self.blocks = blocks
        self.free = blocks
        self.least_free = blocks
        self._caching = caching
        self._queue: deque[Run] = deque([Run(blocks)])

    @property
    def peak_share(self) -> float:
        """Most of the cache that was in use at once, 0..1."""
        return 1 - self.least_free / self.blocks

    def take(self, count: int) -> None:
        """Take new blocks; the caller has checked `free`."""
        self.free -= count
        self.least_free = min(self.least_free, self.free)
        queue = self._queue
        while self._caching and count > 0:
            run = queue[0]
            used = min(count, run.count)
            run.count -= used
            count -= used
            if run.prefix is not None:
                run.prefix.available -= used
            if run.count == 0:
                queue.popleft()
                if run.prefix is not None and run in run.prefix.idle:
                    run.prefix.idle.remove(run)

    def put(self, count: int, prefix: Prefix | None = None) -> None:
        """Free blocks; with a `prefix`, they hold its next idle part."""
        if count <= 0:
            return
        self.free += count
        if not self._caching:
            return
        queue = self._queue
        if prefix is None and queue and queue[-1].prefix is None:
            queue[-1].count += count
            return
        run = Run(count, prefix)
        queue.append(run)
        if prefix is not None:
            prefix.idle.append(run)

    def idle(self, prefix: Prefix, count: int) -> int:
        """Number of the first `count` blocks that no request holds: sharing them uses up free blocks."""
        return max(0, count - prefix.held)

    def share(self, prefix: Prefix, count: int) -> None:
        """Hold the first `count` available blocks of a prefix."""
        missing = self.idle(prefix, count)
        self.free -= missing
        self.least_free = min(self.least_free, self.free)
        prefix.held += missing
        prefix.users[count] += 1
        while missing:
            run = prefix.idle[-1]
            used = min(missing, run.count)
            run.count -= used
            missing -= used
            if run.count == 0:  # stays in the queue, empty
                prefix.idle.pop()
                run.prefix = None

    def extend(self, prefix: Prefix, held: int, full: int) -> int:
        """A user of `held` blocks computed the prefix up to block `full`; returns how many it holds now."""
        if prefix.available != held or full <= held:
            return held  # another request was first: this one's copies are not found by anyone
        prefix.available = prefix.held = full
        self._leave(prefix, held)
        prefix.users[full] += 1
        return full

    def release(self, prefix: Prefix, held: int) -> None:
        """Give up the first `held` blocks; those that no other request holds become idle."""
        self._leave(prefix, held)
        still = max(prefix.users, default=0)
        if still < prefix.held:
            freed, prefix.held = prefix.held - still, still
            self.put(freed, prefix)

    @staticmethod
    def _leave(prefix: Prefix, held: int) -> None:
        prefix.users[held] -= 1
        if not prefix.users[held]:
            del prefix.users[held]
