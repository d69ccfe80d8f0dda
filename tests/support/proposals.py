"""What policies propose for a reading, and which of it wins."""

from collections.abc import Iterable

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context, Policy
from flettner.agent.domain.reading import Reading
from flettner.rules.precedence import ranked
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Value


def changes(proposals: Iterable[Proposal]) -> list[tuple[str, dict[str, Value]]]:
    return [(proposal.rule, dict(proposal.to)) for proposal in proposals]


def rules(proposals: Iterable[Proposal | Finding]) -> list[str]:
    return [proposal.rule for proposal in proposals]


def precedence(reading: Reading, context: Context, *policies: Policy) -> tuple[list[str], dict[str, str]]:
    """Return the rules that win, in their order, and the rule that outranks each other rule."""
    ordered = ranked([proposal for policy in policies for proposal in policy.propose(reading, context)])
    return rules(ordered.winners), {lost.what.rule: lost.by for lost in ordered.outranked}
