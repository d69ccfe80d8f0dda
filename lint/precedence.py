"""The precedence of rules: which rule is followed first, and which rules exclude each other. Pure.

`ORDER` ranks rules that may appear together: the first is followed, the rest are evaluated again when its
outcome is known (one concern per suggestion). `YIELDS` lists rules that must not appear together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flettner.vllm_facts.values import ChangeClass, Knob, Value

ANY = "any change"


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


@dataclass(frozen=True, slots=True)
class RuleRank:
    """Rules of one rank, the most urgent first, and the reason for the rank."""

    name: str
    rules: tuple[str, ...]
    why: str


HEALTH = ("HC1", "HC2", "HC3", "HC4", "HC5", "HC6", "HC7")
"""Rules about a running server that is not fit to be tuned."""

ORDER = (
    RuleRank("health", HEALTH, "what fails or hangs is repaired first, and its measurements are no evidence"),
    RuleRank("hold", ("T1",), "measurements on a throttling GPU are no evidence"),
    RuleRank(
        "does not start",
        ("V1", "D3", "H2", "H1", "F5", "F4", "F9", "V2", "U3", "F10"),
        "a server that does not start, or gives wrong answers, comes before all tuning",
    ),
    RuleRank("memory ran out", ("M2", "M4"), "failures come before slowness"),
    RuleRank(
        "prediction",
        ("PM1",),
        "the model weighs all limits of the scheduler against each other, and says how far to go",
    ),
    RuleRank(
        "KV pressure",
        ("M1", "M3", "K1", "K2", "Q2"),
        "it outranks the queue: more KV cache first, else fewer sequences, else replicas",
    ),
    RuleRank("queue", ("Q1", "K3"), "a cap that is too low is cheap to raise, and hides every other limit"),
    RuleRank(
        "latency",
        ("P4", "P1", "P2", "Q5", "P3"),
        "an SLO is missed now; where prompts of mixed lengths are late, a warm knob comes before a cold one",
    ),
    RuleRank(
        "hardware",
        ("D1", "D2", "D7", "D5", "D4", "D6", "D8", "U1", "U2"),
        "the layout on the GPUs limits what the knobs can do",
    ),
    RuleRank(
        "optimisation",
        ("G1", "F2", "B2", "B1", "B3", "M5", "X1", "G3", "A1", "G2", "C1", "O1", "E2", "F1", "H3"),
        "optimisations, the largest expected gain first",
    ),
    RuleRank("operator's decision", ("L1", "SD1"), "they change which requests are accepted, or the answers"),
    RuleRank("first pass", ("W1",), "a workload template yields to every observation"),
    RuleRank(
        "flags", ("CL1",), "what lint finds in a running server's flags comes after all that was measured"
    ),
    RuleRank(
        "notes",
        ("PM3", "PM2", "Q3", "Q4", "N1", "X2", "C2", "E1", "V3", "R1", "F3", "F6", "F7", "F8"),
        "no flag to change",
    ),
)

_MEMORY_TAKERS = ("PM1", "M1", "M3", "M5", "Q1", "K3", "P1", "P3", "G1", "G2", "G3", "F2", "B1", "B3", "W1")
_SHORT_OF_KV = "the KV cache is the bottleneck"


@dataclass(frozen=True, slots=True)
class Yield:
    """If one of `to` is kept, all of `rules` are dropped, without those of `but`."""

    rules: tuple[str, ...]
    to: tuple[str, ...]
    why: str
    but: tuple[str, ...] = ()


YIELDS = (
    Yield((ANY,), ("HC1", "HC2", "HC3", "HC6", "HC7"), "every change waits until the server is healthy"),
    # A queue behind a low cap is what makes a server reject requests and clients give up.
    Yield((ANY,), ("HC4", "HC5"), "every change waits until the server is healthy", but=("Q1",)),
    Yield(("Q4",), ("HC1", "HC7"), "the health rule names what the requests wait for"),
    Yield(("N1",), HEALTH, "the load of a server that is not healthy sizes nothing"),
    Yield((ANY,), ("T1",), "every change waits while a GPU throttles"),
    Yield(_MEMORY_TAKERS, ("M2", "F5"), "memory ran out: nothing may take more of it"),
    Yield(("M1", "M3", "M5"), ("M4",), "a MoE model needs memory outside vLLM's accounting"),
    Yield(
        ("Q1", "K3", "B1", "W1"),
        ("K1", "K2", "Q2", "M1", "M3", "F4"),
        f"{_SHORT_OF_KV}: more sequences would make it worse",
    ),
    Yield(
        ("P1", "P2", "P3", "P4", "B3", "G1", "G2", "G3", "F2"),
        ("K1", "K2", "Q2", "M1", "M3", "F4"),
        f"{_SHORT_OF_KV}: preemptions make requests late, and this takes memory or hides them",
    ),
    Yield(("P1", "P2", "P3"), ("Q1",), "a queue makes requests late, not the token budget"),
    Yield(("P2", "P3"), ("P1",), "they move the token budget in opposite directions"),
    Yield(("P2", "P3", "Q5"), ("G2",), "batches above the largest graph are late for that reason alone"),
    Yield(("Q5",), ("G1", "Q1", "M2"), "steps without graphs are late for that, and a queue needs more"),
    Yield(("P3",), ("P2", "P4"), "another rule already addresses the tail"),
    Yield(("Q4", "C1"), ("Q1", "K3"), "the sequence cap explains the queue"),
    Yield(("C2",), ("K3", "Q1", "C1"), "the other rule has more evidence"),
    Yield(("CL1",), (ANY,), "a measured cause comes before a rule about flags"),
    Yield(("N1",), ("PM2",), "the model has counted the servers"),
    Yield(("N1",), (ANY,), "a knob may still help: replicas are the last resort"),
    Yield(("G2", "G3"), ("G1", "F2"), "without graphs their sizes and modes do not matter"),
    Yield(("F2",), ("G1",), "the same finding, from the log"),
    Yield(
        ("F10",),
        ("V1", "D3", "H1", "H2", "F4", "F5", "F9", "M2", "U2", "E1"),
        "the other rule explains why the server does not start",
    ),
    Yield(("H3",), ("H1",), "the same flag, and here it does not work at all"),
    Yield(("D2", "D8"), ("D1", "D3", "D5", "D7"), "a specific finding outranks the rule of thumb"),
    Yield(("B1", "B3", "W1"), ("B2",), "a hybrid model on a small card needs the small values"),
    Yield(("W1",), ("D6",), "the profile's expert parallelism would cost this model more than it saves"),
)


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
    """The other rule that wants a different value of one knob, and which knob."""
    for other in kept:
        both = one.to.keys() & other.to.keys() if other.rule != one.rule else set()
        apart = sorted(knob for knob in both if one.to[knob] != other.to[knob])
        if apart:
            return other.rule, f"it wants another {apart[0]}"
    return None


def _changes(one: S) -> bool:
    """True if it changes a knob or, for a finding, the environment."""
    return bool(one.to or getattr(one, "env", {})) and one.klass != "note"


_PLACES = {rule: place for place, rule in enumerate(rule for band in ORDER for rule in band.rules)}
_FIRST = {band.name: _PLACES[band.rules[0]] for band in ORDER}


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


REASONS = {rule: band.why for band in ORDER for rule in band.rules}
"""The reason for a rule's rank."""
