"""Reports each change of a source's availability once."""

from collections.abc import Callable
from dataclasses import dataclass, field

from flettner.agent.domain.ports import Now
from flettner.agent.domain.reading import Sample, SourceState


@dataclass(slots=True)
class SourceReporter:
    """`initial`: the state that needs no report; None: the first state of each source is reported."""

    emit: Callable[[Sample], None]
    now: Now
    initial: bool | None = True
    states: dict[str, bool] = field(default_factory=dict)

    def report(
        self, source: str, *, available: bool, why: str = "", answers: bool = False, server: str = ""
    ) -> None:
        if self.states.get(source, self.initial) is not available:
            self.states[source] = available
            self.emit(
                SourceState(
                    at=self.now(),
                    source=source,
                    server=server,
                    available=available,
                    why=why,
                    answers=answers,
                )
            )
