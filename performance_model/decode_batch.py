"""All requests that decode, as sums: a step of the batch costs the same however many they are.

Every request of the batch computes one token in each step. So its state follows from the number of steps
since it joined, the ends lie in a heap, and the new blocks of a step are those of the requests whose last
block is full.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from flettner.performance_model.request_state import RequestState


class DecodeBatch:
    def __init__(self, block_size: int) -> None:
        self.size = 0
        self.context = 0  # computed tokens of all requests
        self.newest = 0  # upper bound of the admission numbers
        self._block_size = block_size
        self._steps = 0
        self._ends: list[tuple[int, int, RequestState]] = []
        self._full_at = [0] * block_size  # requests that need a block in a step of this remainder

    def join(self, request: RequestState) -> None:
        request.joined = self._steps
        self.size += 1
        self.context += request.computed
        self.newest = max(self.newest, request.admission)
        self._full_at[(self._steps - request.computed) % self._block_size] += 1
        end = self._steps + request.wanted - request.produced
        heappush(self._ends, (end, request.admission, request))

    def new_blocks(self) -> int:
        """Of the next step."""
        return self._full_at[self._steps % self._block_size]

    def steps_to_end(self) -> int:
        """Steps until the first request ends."""
        return self._ends[0][0] - self._steps

    def steps_within(self, free: int) -> int:
        """A number of steps for which `free` blocks suffice; the next one may suffice too, if it is above
        0."""
        cycles = free // self.size  # one block each in block_size steps
        if cycles:
            return cycles * self._block_size
        for ahead in range(self._block_size):
            free -= self._full_at[(self._steps + ahead) % self._block_size]
            if free < 0:
                return ahead
        return self._block_size

    def blocks_for(self, steps: int) -> int:
        """New blocks of the next `steps` steps."""
        cycles, rest = divmod(steps, self._block_size)
        extra = sum(self._full_at[(self._steps + ahead) % self._block_size] for ahead in range(rest))
        return cycles * self.size + extra

    def advance(self, steps: int) -> list[RequestState]:
        """Compute steps, at most `steps_to_end`; returns the requests that ended."""
        self._steps += steps
        self.context += steps * self.size
        ended = []
        while self._ends and self._ends[0][0] == self._steps:
            request = heappop(self._ends)[2]
            self._settle(request)
            self.size -= 1
            self.context -= request.computed
            self._full_at[(self._steps - request.computed) % self._block_size] -= 1
            ended.append(request)
        if not self.size:
            self.newest = 0
        return ended

    def dissolve(self) -> Iterator[RequestState]:
        """Empty the batch; the requests have their state again."""
        for _, _, request in self._ends:
            self._settle(request)
            yield request
        self._ends = []
        self._full_at = [0] * self._block_size
        self.size = self.context = self.newest = 0

    def _settle(self, request: RequestState) -> None:
        since = self._steps - request.joined
        request.computed += since
        request.produced += since
        request.blocks = -(-request.computed // self._block_size)
