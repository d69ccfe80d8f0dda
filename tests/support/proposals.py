"""What policies propose for a reading, and which of it wins."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flettner.agent.domain.model import Evidence, Proposal
from flettner.agent.domain.ports import Context, Policy
from flettner.agent.domain.reading import Reading
from flettner.rules.precedence import ranked
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import ChangeClass, Value


@dataclass(slots=True)
class Says:
    """A policy with one proposal, made while `on`, as a test sets it."""

    rule: str
    to: Mapping[str, Value]
    klass: ChangeClass = "auto"
    on: bool = True
    waiting: float = 12.0

    def propose(self, _: Reading, __: Context) -> tuple[Proposal, ...]:
        made = Proposal(
            rule=self.rule,
            to=self.to,
            why=f"{self.waiting:g} wait",
            expects=f"what {self.rule} expects",
            risks="few",
            source="test",
            klass=self.klass,
            evidence=(Evidence(metric="waiting", value=self.waiting, unit="", window_s=30),),
        )
        return (made,) if self.on else ()


def changes(proposals: Iterable[Proposal]) -> list[tuple[str, dict[str, Value]]]:
    return [(proposal.rule, dict(proposal.to)) for proposal in proposals]


def rules(proposals: Iterable[Proposal | Finding]) -> list[str]:
    return [proposal.rule for proposal in proposals]


def precedence(reading: Reading, context: Context, *policies: Policy) -> tuple[list[str], dict[str, str]]:
    """Return the rules that win, in their order, and the rule that outranks each other rule."""
    ordered = ranked([proposal for policy in policies for proposal in policy.propose(reading, context)])
    return rules(ordered.winners), {lost.what.rule: lost.by for lost in ordered.outranked}
