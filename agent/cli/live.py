"""What all policies say of one reading, with their defaults; of others' policies a broken one is named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from pydantic import TypeAdapter

from agent import expertise, plugins
from agent.advice import finding_of
from agent.config.terms import BOUNDS
from agent.errors import ConfigError
from agent.facts import Case, Finding
from agent.flags import with_setting
from agent.model import Knob, Proposal, Setting, Slo, Value
from agent.outside import SAYS_PLUGIN, Contained, where
from agent.ports import Context
from agent.reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """`findings` in order of precedence. `assumed`: present values that no flag gives. `broken`: one sentence
    for each policy that could not be asked."""

    findings: tuple[Finding, ...] = ()
    assumed: Mapping[Knob, Value] = field(default_factory=dict)
    broken: tuple[str, ...] = ()


def said(reading: Reading, setting: Setting, slo: Slo, case: Case) -> Said:
    context = Context(setting=setting, slo=slo, bounds=BOUNDS, case=case)
    policies, broken = _built()
    proposals: list[Proposal] = []
    for name, policy in policies.items():
        answer = policy.propose(reading, context)
        if why := _unusable(answer) if isinstance(policy, Contained) else "":
            broken.append(f"{name}: {why}")
        else:
            proposals += answer
    kept = expertise.precedence()(proposals).kept
    return Said(
        findings=tuple(finding_of(proposal) for proposal in kept),
        assumed={knob: now for proposal in reversed(kept) for knob, now in proposal.assumed.items()},
        broken=tuple(broken),
    )


def _ours() -> tuple[str, ...]:
    modules = (module.name for module in iter_modules(import_module("policies").__path__) if not module.ispkg)
    return tuple(m for m in modules if SAYS_PLUGIN.search(plugins.source_of(f"policies.{m}")))


def _built() -> tuple[dict[str, Any], list[str]]:
    """Ours and those of installed packages, by name; and why others are not there."""
    built: dict[str, Any] = {}
    broken: list[str] = []
    try:
        names: Sequence[str] = plugins.names("policies")
    except ConfigError as error:  # two of one name: neither is asked
        names, broken = _ours(), [str(error)]
    for name in names:
        try:
            built[name] = plugins.build("policies", name, {})
        except ConfigError as error:
            broken.append(str(error))
        except Exception as error:  # noqa: BLE001 - a stranger's mistake must not end the command
            broken.append(f"{name}: {where(error)}")
    return built, broken


def _unusable(proposals: Sequence[Proposal]) -> str:
    """Why a stranger's proposals cannot be shown or followed; empty when they can."""
    form = TypeAdapter(list[Proposal])
    try:
        form.validate_json(form.dump_json(list(proposals), warnings="error"))
        for proposal in proposals:
            with_setting(("vllm", "serve", "MODEL"), proposal.to)
    except Exception as error:  # noqa: BLE001 - as above
        return " ".join(where(error).split())
    return ""
