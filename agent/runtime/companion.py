"""Tasks next to the loop of a target, for computations that take longer than a tick."""

from collections.abc import Sequence
from typing import Protocol

from flettner.agent.domain.events import Event
from flettner.agent.domain.headroom import HourPeak
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import State
from flettner.agent.observe.spending import Spending


class Observable(Protocol):
    @property
    def state(self) -> State: ...
    @property
    def reading(self) -> Reading | None: ...
    @property
    def spending(self) -> Spending: ...
    @property
    def peaks(self) -> Sequence[HourPeak]: ...
    def emit(self, event: Event) -> None: ...


class Companion(Protocol):
    async def run(self, target: Observable) -> None:
        """Run until cancelled."""
        ...
