"""Tasks next to the loop of a target, for computations that take longer than a tick."""

from typing import Protocol

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.events import Event
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import State


class Observable(Protocol):
    @property
    def state(self) -> State: ...
    @property
    def reading(self) -> Reading | None: ...
    @property
    def gpu_rates(self) -> GpuRates: ...
    def emit(self, event: Event) -> None: ...


class Companion(Protocol):
    async def run(self, target: Observable) -> None:
        """Run until cancelled."""
        ...
