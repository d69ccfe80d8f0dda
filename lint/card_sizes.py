"""A GPU whose name leaves its memory open (A100: 40 or 80 GB) is judged for each size. Pure.

Where all sizes agree, that is the answer. What differs becomes a note that asks which GPU it is.
"""

from collections.abc import Sequence
from dataclasses import replace

from flettner.lint.fixes import Fixes, find_fixes_in_rounds
from flettner.vllm_facts.serve_config import Finding, LintRule, ServeConfig


def find_fixes_for_sizes(config: ServeConfig, lints: Sequence[LintRule]) -> tuple[Fixes, ServeConfig]:
    """The fixes, and the case that they hold for: with the smallest size if all sizes have the same fixes."""
    sizes = config.card.sizes if config.card is not None and config.card.memory_gib is None else ()
    if not sizes:
        return find_fixes_in_rounds(config, lints), config
    cases = [replace(config, card=size) for size in sizes]
    answers = [find_fixes_in_rounds(case, lints) for case in cases]
    first, others = answers[0], answers[1:]
    if all(_summarise(first) == _summarise(other) for other in others):
        names = " and ".join(size.name for size in sizes[1:])
        return replace(first, findings=tuple(_name_others(first, others, names))), cases[0]
    return _merge(config, answers), config


def _summarise(fixes: Fixes) -> tuple[object, ...]:
    findings = [(finding.rule, finding.severity, finding.changes) for finding in fixes.findings]
    return dict(fixes.to), dict(fixes.env), findings


def _name_others(first: Fixes, others: Sequence[Fixes], names: str) -> list[Finding]:
    """The findings of the smallest size; those with other numbers say that the result is the same."""
    return [
        finding
        if all(other.findings[place].why == finding.why for other in others)
        else replace(finding, why=f"{finding.why}; the same on {names}")
        for place, finding in enumerate(first.findings)
    ]


def _merge(config: ServeConfig, answers: Sequence[Fixes]) -> Fixes:
    """The findings and changes that all sizes have in common, and a note for each rule that some lack."""
    first, sizes = answers[0], config.card.sizes if config.card else ()
    common = [finding for finding in first.findings if all(_has(answer, finding) for answer in answers)]
    shown, rules = list(common), {finding.rule for finding in common}
    for size, answer in zip(sizes, answers, strict=True):
        for finding in answer.findings:
            if finding.rule not in rules:
                rules.add(finding.rule)
                shown.append(_ask(finding, size.name, [each.name for each in sizes]))
    to = {knob: value for knob, value in first.to.items() if _agree(answers, knob, value)}
    env = {
        name: value
        for name, value in first.env.items()
        if all(name in other.env and other.env[name] == value for other in answers)
    }
    return replace(first, findings=tuple(shown), to=to, env=env)


def _has(fixes: Fixes, finding: Finding) -> bool:
    return any(other.rule == finding.rule and other.changes == finding.changes for other in fixes.findings)


def _agree(answers: Sequence[Fixes], knob: str, value: object) -> bool:
    return all(knob in answer.to and answer.to[knob] == value for answer in answers)


def _ask(finding: Finding, size: str, sizes: Sequence[str]) -> Finding:
    return replace(
        finding,
        klass="note",
        severity="warning" if finding.severity == "error" else finding.severity,
        why=f"on {size}: {finding.why}",
        to={},
        env={},
        expects=f"the memory decides: say which GPU it is, --gpu {' or '.join(repr(name) for name in sizes)}",
    )
