"""Ranks proposals and findings by the order of their rules, and drops those that another item outranks. Pure.

The first is followed; the rest are evaluated again when its outcome is known. The daemon joins those that
remove different causes of late requests (flettner.agent.machine.asking).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flettner.rules.table import ANY, ORDER, YIELDS
from flettner.vllm_facts.values import ChangeClass, Knob, Value


class Rankable(Protocol):
    """A proposal, a finding, or an object that holds either."""

    @property
    def rule(self) -> str: ...
    @property
    def to(self) -> Mapping[Knob, Value]: ...
    @property
    def klass(self) -> ChangeClass: ...


S = TypeVar("S", bound=Rankable)


@dataclass(frozen=True, slots=True)
class Outranked(Generic[S]):
    """A dropped element, the rule that outranks it, and the reason in a sentence."""

    what: S
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Ordered(Generic[S]):
    """All given elements: the winners in the order in which to follow them, and `outranked`."""

    winners: tuple[S, ...]
    outranked: tuple[Outranked[S], ...] = ()


class Precedence(Protocol):
    def __call__(self, items: Sequence[S], /) -> Ordered[S]: ...


def ranked(items: Sequence[S]) -> Ordered[S]:
    """Sort proposals or findings by precedence and drop those that another item outranks.

    Only a winner outranks another item: each item is decided after all items that could outrank it, and is
    compared with the winners alone. In a cycle, the item that ranks first is decided first.
    """
    ordered = sorted(items, key=_rank)  # stable: items of one rank keep their order
    rivals = {
        place: [at for at, other in enumerate(ordered) if _may_lose(item, other, later=at > place)]
        for place, item in enumerate(ordered)
    }
    pending, winners = list(rivals), dict[int, S]()
    outranked: dict[int, Outranked[S]] = {}
    while pending:
        place = next((at for at in pending if not any(by in pending for by in rivals[at])), pending[0])
        pending.remove(place)
        item, standing = ordered[place], [winners[at] for at in sorted(winners)]
        lost = _yields(item, standing) or _contradicts(item, standing) or _excludes(item, standing)
        if lost is None:
            winners[place] = item
        else:
            outranked[place] = Outranked(item, *lost)
    return Ordered(
        tuple(winners[at] for at in sorted(winners)), tuple(outranked[at] for at in sorted(outranked))
    )


def _may_lose(item: S, other: S, *, later: bool) -> bool:
    """True if `other`, once a winner, outranks `item`."""
    if other is item:
        return False
    if _yields(item, (other,)):
        return True
    return not later and not _yields(other, (item,)) and bool(_contradicts(item, (other,)))


def _excludes(item: S, winners: Sequence[S]) -> tuple[str, str] | None:
    """The winner's rule that would yield to `item`, had a cycle not decided it first, and why `item` goes."""
    first = next((other.rule for other in winners if _yields(other, (item,))), None)
    return None if first is None else (first, "the two exclude each other, and the other is followed first")


def _yields(item: S, winners: Sequence[S]) -> tuple[str, str] | None:
    """The rule that `item` yields to by `YIELDS`, and why."""
    for row in YIELDS:
        every = ANY in row.rules and _changes(item) and item.rule not in (*row.to, *row.but)
        if item.rule not in row.rules and not every:
            continue
        for other in winners:
            changes = ANY in row.to and _changes(other) and other.rule != item.rule
            if other.rule in row.to or changes:
                return other.rule, row.why
    return None


def _contradicts(item: S, winners: Sequence[S]) -> tuple[str, str] | None:
    """The other rule that wants a different value of one knob or variable, and which."""
    for other in winners:
        if other.rule != item.rule and (apart := contradictions(_changes_of(item), _changes_of(other))):
            return other.rule, f"it wants another {min(apart)}"
    return None


def contradictions(changes: Mapping[str, Value], other: Mapping[str, Value]) -> list[str]:
    """The names to which both give a value, if the values differ."""
    return [name for name, value in changes.items() if name in other and other[name] != value]


def _changes_of(item: Rankable) -> Mapping[str, Value]:
    """The knobs that the item changes and, for a finding, the variables."""
    changes: Mapping[str, Value] = getattr(item, "changes", item.to)
    return changes


def _changes(item: Rankable) -> bool:
    return bool(_changes_of(item)) and item.klass != "note"


_PLACES = {rule: place for place, rule in enumerate(rule for rank in ORDER for rule in rank.rules)}
_FIRST = {rank.name: min(_PLACES[rule] for rule in rank.rules) for rank in ORDER}


def _rank(item: S) -> tuple[float, bool]:
    """The rank of a rule. Of notes, those of a log come first: their rules begin with F.

    A rule outside the table comes last of its kind: a mitigation before all optimisations.
    """
    if item.rule in _PLACES:
        # A known rule may be a change in one case and a note in another. Layouts (D) are limits, no tuning.
        place = _PLACES[item.rule]
        tuning = place >= _FIRST["memory ran out"] and not item.rule.startswith("D")
        is_note = not _changes(item) and (tuning or getattr(item, "severity", "") == "info")
        if not is_note:
            return place, False
        least = _FIRST["notes"] - (0.75 if item.rule.startswith("F") else 0.5)
        return max(place, least), False
    if not _changes(item):
        return len(_PLACES), True
    mitigation = bool(getattr(item, "mitigation", False))
    return _FIRST["hardware" if mitigation else "operator's decision"] - 0.5, True
