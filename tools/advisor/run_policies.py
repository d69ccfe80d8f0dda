"""Runs all policies with their defaults on one reading; a broken third-party policy is reported by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from flettner.agent.config.convert import BOUNDS
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Evidence, Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.plugins import loader
from flettner.agent.plugins.third_party import GuardedPolicy, failure_location
from flettner.policies.shared.overload import empties_by_itself
from flettner.rules.precedence import ranked
from flettner.rules.table import HEALTH
from flettner.vllm_facts.flag_parser import edit_flags
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.values import Knob, Setting, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFindings:
    """Findings of all policies on one reading.

    `findings`: in order of precedence, then the outranked findings, because `lint.fixes.find_fixes` ranks
    them again with the findings on the flags. `assumed`: current values that no flag sets. `broken`: a
    message for each policy that failed.
    """

    findings: tuple[Finding, ...] = ()
    assumed: Mapping[Knob, Value] = field(default_factory=dict)
    broken: tuple[str, ...] = ()


def run_all(reading: Reading, setting: Setting, slo: Slo, config: ServeConfig) -> PolicyFindings:
    reading = _before_the_peak_ended(reading)
    context = Context(setting=setting, slo=slo, bounds=BOUNDS, config=config)
    policies, broken = _build_all()
    proposals: list[Proposal] = []
    for name, policy in policies.items():
        if not isinstance(policy, GuardedPolicy):
            proposals += policy.propose(reading, context)
            continue
        answer, failure = policy.ask(reading, context)
        if why := failure or _find_defect(answer):
            broken.append(f"{name}: {why}")
        else:
            proposals += answer
    ordered = ranked(proposals)
    every = (*ordered.winners, *(lost.what for lost in ordered.outranked))
    return PolicyFindings(
        findings=tuple(finding_of(proposal) for proposal in every),
        assumed={knob: now for proposal in reversed(every) for knob, now in proposal.assumed.items()},
        broken=tuple(broken),
    )


def _before_the_peak_ended(reading: Reading) -> Reading:
    """Without the arrivals where a queue empties: they are those of one window, and not those that made it.

    The daemon knows the minutes before, and that a canary would find nothing to cure. Who asks once wants to
    know why requests waited.
    """
    if not empties_by_itself(reading):
        return reading
    return replace(reading, work=replace(reading.work, lasting_arrivals_per_s=None))


def _build_all() -> tuple[dict[str, Any], list[str]]:
    """Return all policies by name, and a message for each policy that cannot be built."""
    built: dict[str, Any] = {}
    broken: list[str] = []
    try:
        names: Sequence[str] = loader.list_plugins("policies")
    except ConfigError as error:  # two policies of one name: both are left out
        names, broken = sorted(loader.shipped_plugins("policies")), [str(error)]
    for name in names:
        try:
            built[name] = loader.build_plugin("policies", name, {})
        except ConfigError as error:
            broken.append(str(error))
        except Exception as error:  # noqa: BLE001 - a third-party defect must not end the command
            broken.append(f"{name}: {failure_location(error)}")
    return built, broken


def _find_defect(proposals: Sequence[Proposal]) -> str:
    """Return why a third-party policy's proposals cannot be shown or applied; empty if they can."""
    form = TypeAdapter(list[Proposal])
    try:
        form.validate_json(form.dump_json(list(proposals), warnings="error"))
        for proposal in proposals:
            edit_flags(("vllm", "serve", "MODEL"), proposal.to)
    except Exception as error:  # noqa: BLE001 - as above
        return " ".join(failure_location(error).split())
    return ""


def finding_of(proposal: Proposal) -> Finding:
    """Return a policy's proposal as a finding."""
    evidence: dict[str, Value] = {item.metric: round(item.value, 6) for item in proposal.evidence}
    if proposal.evidence:
        evidence["window_s"] = round(_window_s(proposal.evidence), 3)
    return Finding(
        rule=proposal.rule,
        klass=proposal.klass,
        severity="error" if proposal.rule in HEALTH else "warning" if proposal.to else "info",
        why=proposal.why,
        source=proposal.source,
        to={} if proposal.klass == "note" else proposal.to,
        expects=proposal.expects,
        risks=proposal.risks,
        evidence=evidence,
    )


def _window_s(evidence: Sequence[Evidence]) -> float:
    return max(item.window_s for item in evidence)
