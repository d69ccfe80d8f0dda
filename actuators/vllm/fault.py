"""The fault by which a server does not serve, and its report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.ports import Now


@dataclass(frozen=True, slots=True)
class Fault:
    """`external`: the cause lies outside the server and its flags."""

    why: str
    external: bool = False


class Report(Protocol):
    def __call__(self, fault: Fault, log: tuple[str, ...], *, gone: bool) -> None: ...


def make_report(server: str, emit: Callable[[ServerLost], None], now: Now) -> Report:
    """Return the function by which the watch of a server reports its faults, each with the last log lines."""

    def report(fault: Fault, log: tuple[str, ...], *, gone: bool) -> None:
        why = f"{server} {fault.why}"
        emit(ServerLost(at=now(), server=server, why=why, gone=gone, log=log, external=fault.external))

    return report
