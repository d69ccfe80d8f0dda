"""Who is heard first: the shape of what puts proposals, or findings, in order. Pure; it names no rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from vllm_facts.values import ChangeClass, Knob, Value


class Rankable(Protocol):
    """A proposal, a finding, or what holds one."""

    @property
    def rule(self) -> str: ...
    @property
    def to(self) -> Mapping[Knob, Value]: ...
    @property
    def klass(self) -> ChangeClass: ...


S = TypeVar("S", bound=Rankable)


@dataclass(frozen=True, slots=True)
class Outranked(Generic[S]):
    """What is not heard, the rule that it yields to, and why in one sentence."""

    what: S
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Ordered(Generic[S]):
    """`kept`: the first is heard first. Together with `outranked` all that was said."""

    kept: tuple[S, ...]
    outranked: tuple[Outranked[S], ...] = ()


class Precedence(Protocol):
    def __call__(self, said: Sequence[S]) -> Ordered[S]: ...


def as_said(said: Sequence[S]) -> Ordered[S]:
    """No precedence: in the order in which it was said."""
    return Ordered(tuple(said))
