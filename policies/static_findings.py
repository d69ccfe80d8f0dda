"""Try the findings of lint on the server's own flags, after all measured causes."""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import build_evidence, check_options, has_insufficient_data
from flettner.rules.table import name_of
from flettner.vllm_facts.knobs import KNOBS, misfit, tunable
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import ChangeClass, Knob, Value

BY_LOAD = frozenset(
    {
        *("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens"),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "watermark", "long_prefill_token_threshold"),
    }
)
"""Knobs whose right value depends on the load: only rules that measure it change them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFindings:
    """Rule CL1. A finding is tried if it sets tunable knobs to a value; the others are only shown."""

    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        return tuple(
            _build(finding, reading) for finding in context.findings if can_try(finding, reading, context)
        )


def can_try(finding: Finding, reading: Reading, context: Context) -> bool:
    """Whether its change is a value of tunable knobs that the server's version has.

    A server that runs has no error of its start: what lint takes for such an error is not tried.
    """
    if not finding.to or finding.env or finding.severity == "error" or _class(finding) == "note":
        return False
    return all(_is_possible(knob, value, reading, context) for knob, value in finding.to.items())


def _is_possible(knob: Knob, value: Value, reading: Reading, context: Context) -> bool:
    flag, present = knob.partition(".")[0], context.setting.get(knob)
    exists = knob in context.setting or KNOBS[flag].in_version(reading.facts.get("version")) is True
    allowed = context.bound(knob).allows(value) and not misfit(knob, value)
    return tunable(knob) and knob not in BY_LOAD and exists and allowed and value != present


def _class(finding: Finding) -> ChangeClass:
    """The strictest of the finding's class and the classes of its knobs."""
    classes = {finding.klass, *(KNOBS[knob.partition(".")[0]].klass for knob in finding.to if tunable(knob))}
    return "note" if classes - {"auto", "gated"} else "gated" if "gated" in classes else "auto"


def _build(finding: Finding, reading: Reading) -> Proposal:
    return Proposal(
        rule="CL1",
        to=finding.to,
        why=f"lint rule {name_of(finding.rule)}, from the flags alone: {finding.why}",
        expects=finding.expects or "the effect that the rule states; the rollout measures it",
        risks=finding.risks or "it was not measured on this server",
        source=finding.source,
        evidence=build_evidence(reading),
        klass=_class(finding),
    )


plugin = StaticFindings
