"""What an expert says about one case: findings in order of urgency, and the changes that follow. Pure.

Two findings that want different values of one knob are never both followed, and a change that would bring
a new error is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lint.ordering import Ordered, Outranked, Precedence
from vllm_facts.deployment import Deployment, Finding, LintRule
from vllm_facts.values import Knob, Value

SEVERITIES = ("error", "warning", "info")
STEPS = 6  # of one rule that corrects itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """`findings`: errors first, within a severity the most urgent first. `to` and `env`: what to change."""

    findings: tuple[Finding, ...] = ()
    outranked: tuple[Outranked[Finding], ...] = ()
    to: Mapping[Knob, Value] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    later: tuple[str, ...] = ()  # what is not among the changes, and why

    def after(self, case: Deployment) -> Deployment:
        return _with(case, self.to, self.env)


def advise(
    case: Deployment, lints: Sequence[LintRule], ranked: Precedence, live: Sequence[Finding] = ()
) -> Advice:
    """`live`: what the policies say of the running server. Only the first of those is followed.

    One change at a time is what can be measured; flags that are wrong in themselves are put right together.
    """
    static, live = _told_once([_settled(one, case, lints) for one in _distinct(_linted(case, lints))], live)
    heard = ranked([*live, *static])
    kept, outranked = _errors_first(heard)
    found: list[Finding] = []
    to: dict[Knob, Value] = {}
    env: dict[str, str | None] = {}
    later: list[str] = []
    followed: Finding | None = None
    errors = present = _errors(case, lints)
    for finding in sorted(_agreed(kept), key=lambda finding: SEVERITIES.index(finding.severity)):
        measured = any(finding is one for one in live)
        if measured and followed is not None and finding.to:
            found.append(finding)
            later.append(f"{_named(finding)}: one change at a time; first measure {_named(followed)}")
            continue
        if not finding.to and not finding.env:
            found.append(finding)
            continue
        if finding.severity == "error" and finding.rule in present - errors:
            outranked.append(Outranked(finding, found[-1].rule, "what is put right before ends that too"))
            continue
        with_it = _errors(_with(case, {**to, **finding.to}, {**env, **finding.env}), lints)
        if brings := with_it - errors:
            outranked.append(Outranked(finding, min(brings), "what it asks for would bring that"))
            continue
        found.append(finding)
        followed = finding if measured else followed
        errors = with_it
        to, env = {**to, **finding.to}, {**env, **finding.env}
    return Advice(findings=tuple(found), outranked=tuple(outranked), to=to, env=env, later=tuple(later))


def _errors_first(heard: Ordered[Finding]) -> tuple[list[Finding], list[Outranked[Finding]]]:
    """Nothing outranks what keeps the server from starting, but another such thing."""
    grave = {finding.rule for finding in heard.kept if finding.severity == "error"}
    back = [lost for lost in heard.outranked if lost.what.severity == "error" and lost.by not in grave]
    return (
        [*(lost.what for lost in back), *heard.kept],
        [lost for lost in heard.outranked if not any(lost is one for one in back)],
    )


def rows(finding: Finding, case: Deployment, assumed: Mapping[Knob, Value]) -> list[dict[str, Any]]:
    """One row for each knob or variable that changes, as JSON; one without a knob where none does."""
    common = {"rule": finding.rule, "class": finding.klass, "severity": finding.severity}
    told = {
        "why": finding.why,
        "expects": finding.expects,
        "risks": finding.risks,
        "evidence": dict(finding.evidence),
        "source": finding.source,
    }
    changes: list[dict[str, Value]] = [
        {"knob": knob, "current": case.setting.get(knob, assumed.get(knob)), "suggested": value}
        for knob, value in finding.to.items()
    ]
    changes += [
        {"knob": f"env:{name}", "current": case.env.get(name), "suggested": value}
        for name, value in finding.env.items()
    ]
    nothing: dict[str, Value] = {"knob": None, "current": None, "suggested": None}
    return [{**common, **change, **told} for change in changes or [nothing]]


def _linted(case: Deployment, lints: Iterable[LintRule]) -> list[Finding]:
    found = [finding for lint in lints for finding in lint.check(case)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _distinct(findings: Iterable[Finding]) -> list[Finding]:
    """What two lints say in the same words is said once."""
    kept: list[Finding] = []
    for finding in findings:
        if not any(_key(finding) == _key(one) and finding.why == one.why for one in kept):
            kept.append(finding)
    return kept


def _settled(finding: Finding, case: Deployment, lints: Sequence[LintRule]) -> Finding:
    """With the values that the same rule is content with, where it would go on step by step."""
    own = [lint for lint in lints if finding.rule in lint.rules]
    settled = finding
    for _ in range(STEPS):
        after = replace(_with(case, settled.to, settled.env), log=())
        found = (one for one in _linted(after, own) if one.rule == finding.rule)
        onward = next((one for one in found if one.to.keys() & settled.to.keys()), None)
        if onward is None:
            return settled
        settled = replace(settled, to={**settled.to, **onward.to}, expects=onward.expects, risks=onward.risks)
    return finding  # it goes in circles


def _told_once(static: Sequence[Finding], live: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """What flags and traffic say alike is said of the flags, with what was seen; advice that traffic makes a
    change of, as that change."""
    changed = {finding.rule for finding in live if finding.to}
    static = [one for one in static if one.to or one.env or one.rule not in changed]
    seen = {_key(finding): finding.evidence for finding in live if finding.to}
    known = {_key(finding) for finding in static}
    return (
        [replace(one, evidence={**one.evidence, **seen.get(_key(one), {})}) for one in static],
        [one for one in live if not one.to or _key(one) not in known],
    )


def _named(finding: Finding) -> str:
    """`K1 (watermark 0.02)`"""
    values = (f"{knob} {'as vLLM chooses' if to is None else to}" for knob, to in finding.to.items())
    return f"{finding.rule} ({', '.join(values)})"


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, tuple(finding.to.items()), tuple(finding.env.items())


def _agreed(findings: Iterable[Finding]) -> list[Finding]:
    """Without those that contradict one before them."""
    to: dict[Knob, Value] = {}
    env: dict[str, str | None] = {}
    kept = []
    for finding in findings:
        if _clash(finding.to, to) or _clash(finding.env, env):
            continue
        kept.append(finding)
        to, env = {**to, **finding.to}, {**env, **finding.env}
    return kept


def _clash(wanted: Mapping[str, Value], settled: Mapping[str, Value]) -> bool:
    return any(name in settled and settled[name] != value for name, value in wanted.items())


def _with(case: Deployment, to: Mapping[Knob, Value], env: Mapping[str, str | None]) -> Deployment:
    setting = {knob: value for knob, value in {**case.setting, **to}.items() if value is not None}
    environment = {name: value for name, value in {**case.env, **env}.items() if value is not None}
    return replace(case, setting=setting, env=environment)


def _errors(case: Deployment, lints: Sequence[LintRule]) -> set[str]:
    """The rules that say it will not start so; without the log, which is of another start."""
    found = {finding.rule for finding in _linted(replace(case, log=()), lints) if finding.severity == "error"}
    seqs, tokens = case.setting.get("max_num_seqs"), case.setting.get("max_num_batched_tokens")
    if isinstance(seqs, int) and isinstance(tokens, int) and tokens < seqs:
        found.add("max_num_batched_tokens < max_num_seqs")  # vLLM refuses that
    return found
