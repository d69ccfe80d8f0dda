"""Ranks proposals and findings by the order of their rules, and drops those that another one outranks. Pure.

The first is followed; the rest are evaluated again when its outcome is known (one concern per suggestion).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flettner.rules.table import ANY, ORDER, YIELDS
from flettner.vllm_facts.values import ChangeClass, Knob, Value


class Rankable(Protocol):
    """A proposal, a finding, or a holder of one."""

    @property
    def rule(self) -> str: ...
    @property
    def to(self) -> Mapping[Knob, Value]: ...
    @property
    def klass(self) -> ChangeClass: ...


S = TypeVar("S", bound=Rankable)


@dataclass(frozen=True, slots=True)
class Outranked(Generic[S]):
    """A dropped element, the kept rule that outranks it, and why in one sentence."""

    what: S
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Ordered(Generic[S]):
    """All given elements: `kept`, the first to be followed first, and `outranked`."""

    kept: tuple[S, ...]
    outranked: tuple[Outranked[S], ...] = ()


class Precedence(Protocol):
    def __call__(self, items: Sequence[S], /) -> Ordered[S]: ...


def ranked(items: Sequence[S]) -> Ordered[S]:
    """Sort proposals or findings by precedence and drop those that another one outranks.

    Only a kept element outranks another: each element is decided after all elements that could outrank it,
    and is compared with the kept ones alone. In a cycle, the first in rank is decided first.
    """
    ordered = sorted(items, key=_rank)  # stable: elements of one rank keep their order
    winners = {
        place: [at for at, other in enumerate(ordered) if _may_lose(one, other, later=at > place)]
        for place, one in enumerate(ordered)
    }
    pending, kept = list(winners), dict[int, S]()
    outranked: dict[int, Outranked[S]] = {}
    while pending:
        place = next((at for at in pending if not any(by in pending for by in winners[at])), pending[0])
        pending.remove(place)
        one, standing = ordered[place], [kept[at] for at in sorted(kept)]
        lost = _yields(one, standing) or _contradicts(one, standing) or _excludes(one, standing)
        if lost is None:
            kept[place] = one
        else:
            outranked[place] = Outranked(one, *lost)
    return Ordered(tuple(kept[at] for at in sorted(kept)), tuple(outranked[at] for at in sorted(outranked)))


def _may_lose(one: S, other: S, *, later: bool) -> bool:
    """True if `other`, once kept, outranks `one`."""
    if other is one:
        return False
    if _yields(one, (other,)):
        return True
    return not later and not _yields(other, (one,)) and bool(_contradicts(one, (other,)))


def _excludes(one: S, kept: Sequence[S]) -> tuple[str, str] | None:
    """The kept rule that would yield to `one`, had a cycle not decided it first, and why `one` goes."""
    first = next((other.rule for other in kept if _yields(other, (one,))), None)
    return None if first is None else (first, "the two exclude each other, and the other is followed first")


def _yields(one: S, kept: Sequence[S]) -> tuple[str, str] | None:
    """The rule that `one` yields to by `YIELDS`, and why."""
    for row in YIELDS:
        every = ANY in row.rules and _changes(one) and one.rule not in (*row.to, *row.but)
        if one.rule not in row.rules and not every:
            continue
        for other in kept:
            changes = ANY in row.to and _changes(other) and other.rule != one.rule
            if other.rule in row.to or changes:
                return other.rule, row.why
    return None


def _contradicts(one: S, kept: Sequence[S]) -> tuple[str, str] | None:
    """The other rule that wants a different value of one knob or variable, and which."""
    for other in kept:
        if other.rule != one.rule and (apart := contradictions(_changes_of(one), _changes_of(other))):
            return other.rule, f"it wants another {min(apart)}"
    return None


def contradictions(one: Mapping[str, Value], other: Mapping[str, Value]) -> list[str]:
    """The names to which both give a value, each another."""
    return [name for name, value in one.items() if name in other and other[name] != value]


def _changes_of(one: Rankable) -> Mapping[str, Value]:
    """The knobs that it changes and, for a finding, the variables."""
    changes: Mapping[str, Value] = getattr(one, "changes", one.to)
    return changes


def _changes(one: Rankable) -> bool:
    return bool(_changes_of(one)) and one.klass != "note"


_PLACES = {rule: place for place, rule in enumerate(rule for rank in ORDER for rule in rank.rules)}
_FIRST = {rank.name: min(_PLACES[rule] for rule in rank.rules) for rank in ORDER}


def _rank(one: S) -> tuple[float, bool]:
    """The rank of a rule.

    A rule outside the table comes last of its kind: a mitigation before all optimisations.
    """
    if one.rule in _PLACES:
        # A known rule may be a change in one case and a note in another.
        is_note = not _changes(one) and _PLACES[one.rule] >= _FIRST["memory ran out"]
        return (max(_PLACES[one.rule], _FIRST["notes"] - 0.5) if is_note else _PLACES[one.rule]), False
    if not _changes(one):
        return len(_PLACES), True
    mitigation = bool(getattr(one, "mitigation", False))
    return _FIRST["hardware" if mitigation else "operator's decision"] - 0.5, True
