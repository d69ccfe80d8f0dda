"""The proposals of one second: ranked, through the guard, and joined where several causes bind. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.evidence import knob_directions, rule_key
from flettner.agent.machine.guard import ProposalRefusal
from flettner.agent.machine.hot_knobs import HOT_FIRST, why_not_hot
from flettner.agent.machine.open_suggestions import RankedProposal
from flettner.agent.machine.transitions import Rules
from flettner.rules.precedence import Ordered, Outranked, ranked
from flettner.rules.table import cause_of, name_of
from flettner.vllm_facts.values import Setting


@dataclass(frozen=True, slots=True)
class Asked(RankedProposal):
    """A proposal and the policy that made it; a joint one with the proposals that it consists of."""

    policy: str
    parts: tuple[Proposal, ...] = ()

    @property
    def is_change(self) -> bool:
        return self.klass != "note" and bool(self.to)

    @property
    def each(self) -> tuple[Proposal, ...]:
        return self.parts or (self.proposal,)

    def keys(self, setting: Setting) -> frozenset[str]:
        """Its rules and what it does, as keys of sightings."""
        does = knob_directions(self.to, setting, self.proposal.assumed)
        return does | {rule_key(part.rule) for part in self.each}


Admitted = tuple[Asked, Suggestion | ProposalRefusal | None]
"""A proposal with what the guard says of it; None: it is advice."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the policies say in this second: proposals after the guard, and the outranked ones."""

    admitted: tuple[Admitted, ...]
    outranked: tuple[Outranked[Asked], ...]

    @property
    def suggestions(self) -> Iterator[Suggestion]:
        return (suggestion for _, suggestion in self.admitted if isinstance(suggestion, Suggestion))


def ask(rules: Rules, state: State, reading: Reading, context: Context, at: datetime) -> Answers:
    """Ask all policies. A change that gained nothing outranks no other: the next cause has its turn."""
    asked = [
        Asked(proposal, name)
        for name, policy in rules.policies
        for proposal in policy.propose(reading, context)
    ]

    def admit(proposals: Sequence[Asked]) -> list[Admitted]:
        return [(proposal, _admit(rules, state, proposal, reading, at)) for proposal in proposals]

    ordered: Ordered[Asked] = ranked(asked)
    admitted = admit(ordered.winners)
    spent = [pair for pair in admitted if isinstance(pair[1], ProposalRefusal) and pair[1].gained_nothing]
    if spent:
        tried = [proposal for proposal, _ in spent]
        ordered = ranked([proposal for proposal in asked if proposal not in tried])
        admitted = [*spent, *admit(ordered.winners)]
    joint = _join(rules, state, [proposal for proposal, _ in admitted])
    made = _admit(rules, state, joint, reading, at) if joint else None
    if joint and isinstance(made, Suggestion) and made.proposal.to.keys() == joint.to.keys():
        rest = [pair for pair in admitted if pair[0].proposal not in joint.parts]
        admitted = [(joint, made), *rest]
    return Answers(tuple(admitted), ordered.outranked)


def _admit(
    rules: Rules, state: State, asked: Asked, reading: Reading, at: datetime
) -> Suggestion | ProposalRefusal | None:
    if not asked.is_change:
        return None
    return rules.guard.admit(
        state, asked.proposal, policy=asked.policy, at=at, reading=reading, slo=rules.slo
    )


def _join(rules: Rules, state: State, asked: Sequence[Asked]) -> Asked | None:
    """One proposal for all causes of the present miss; None if one cause is named.

    A limit that binds hides what another one costs, so each change alone may gain nothing.
    """
    first: Asked | None = None
    parts: dict[str, Proposal] = {}
    for proposal in asked:
        cause = cause_of(proposal.rule)
        if not (cause and proposal.is_change and proposal.mitigation) or cause in parts:
            continue
        first = first or proposal
        if _way(rules, state, proposal) == _way(rules, state, first):
            parts[cause] = proposal.proposal
    if first is None or len(parts) == 1:
        return None
    return Asked(_unite(tuple(parts.values())), first.policy, tuple(parts.values()))


def _way(rules: Rules, state: State, asked: Asked) -> tuple[object, ...]:
    """How it would be carried out, and whether without a person: changes of two ways are not joined."""
    number = (state.epoch, state.effects.next_number)
    hot = rules.strategy in HOT_FIRST and not why_not_hot(state.fleet.running, asked.to, number)
    return hot, state.mode == "auto" and asked.klass


def _unite(parts: Sequence[Proposal]) -> Proposal:
    first, *others = parts

    def each(name: str) -> str:
        return "; ".join(dict.fromkeys(getattr(part, name) for part in parts))

    return replace(
        first,
        klass="gated" if any(part.klass == "gated" for part in parts) else first.klass,
        to={knob: value for part in parts for knob, value in part.to.items()},
        assumed={knob: value for part in parts for knob, value in part.assumed.items()},
        why="; ".join([first.why, *(f"and {name_of(part.rule)}: {part.why}" for part in others)]),
        expects=each("expects"),
        risks=each("risks"),
        source=each("source"),
        evidence=tuple(dict.fromkeys(row for part in parts for row in part.evidence)),
    )
