"""A GPU that several servers share: kernels of the processes take turns, and each server slows the others.

A server in a step has its turn whether its kernels fill it or not. On a recorded H100
(tests/data/gpu/h100-qwen3-8b-loop.json.gz) a step of 8 decoding sequences took 6.5 ms alone, 13.9 ms beside
another server, whatever share of the traffic and of prefill that had.
"""

from dataclasses import dataclass, field

STARTING = 0.04
"""The part of the card that a server takes in the second half of its start, on average: it compiles, measures
its memory and captures graphs. A loaded server beside it was 3 % slower on the H100 and 5 % on an H200, 10 to
20 % during the captures, and no slower in the first half."""
SWITCHING = 1.06
"""The time of a step's kernels beside others, over that of equal turns: the changes between the processes."""


@dataclass(slots=True)
class Card:
    """The servers that have kernels to run, each with the weight of its turn: 1 while it has requests."""

    _turns: dict[str, float] = field(default_factory=dict)

    def take(self, server: str, weight: float = 1.0) -> None:
        self._turns[server] = weight

    def leave(self, server: str) -> None:
        self._turns.pop(server, None)

    def slowdown(self, server: str) -> float:
        """Return the factor on the time of the server's kernels, 1 on a card that nobody else uses."""
        others = sum(weight for name, weight in self._turns.items() if name != server)
        return (1.0 + others) * SWITCHING if others >= 1 else 1.0 + others
