"""The fixes of a command line, until the result gives rise to no further change. Pure.

A change may make another one possible: with a larger batch a graph size is too small, with more GPUs the
weights fit without offloading. The changes of all rounds are one proposal.
"""

from collections.abc import Sequence
from dataclasses import replace

from flettner.lint.fixes import SEVERITIES, Fixes, find_fixes
from flettner.rules.precedence import contradictions
from flettner.rules.table import name_of
from flettner.vllm_facts.serve_config import Finding, LintRule, ServeConfig

ROUNDS = 4  # 6,000 random commands needed at most three


def find_fixes_in_rounds(config: ServeConfig, lints: Sequence[LintRule]) -> Fixes:
    """The fixes of `config`, with what the changed command calls for.

    It ends early where a later round contradicts an earlier finding of another rule, unless that corrects an
    error: a later value corrects it, too, because no round brings one back.
    """
    fixes = find_fixes(config, lints)
    for _ in range(ROUNDS):
        if not fixes.to and not fixes.env:
            break
        more = find_fixes(replace(fixes.after(config), log=()), lints)
        joined = _join(fixes, more)
        if joined is None:
            break
        fixes = joined
    return fixes


def _join(first: Fixes, more: Fixes) -> Fixes | None:
    """Both together; None if `more` changes nothing, or undoes what another rule asks for."""
    added = [one for one in more.findings if one.to or one.env]
    kept = [
        _with_later_values(one, added)
        for one in first.findings
        if one.severity == "error" or not any(_replaces(new, one) for new in added)
    ]
    if not added or any(contradictions(new.changes, one.changes) for new in added for one in kept):
        return None
    rules = {one.rule for one in kept}
    findings = sorted([*kept, *added], key=lambda one: SEVERITIES.index(one.severity))
    outranked = tuple(lost for lost in first.outranked if lost.by in rules | {one.rule for one in added})
    return replace(
        first,
        findings=tuple(findings),
        outranked=outranked,
        to={**first.to, **more.to},
        env={**first.env, **more.env},
    )


def _replaces(new: Finding, one: Finding) -> bool:
    """True for a later value of the same rule."""
    return new.rule == one.rule and bool(new.changes.keys() & one.changes.keys())


def _with_later_values(one: Finding, added: Sequence[Finding]) -> Finding:
    """An error with the values that later findings give to its knobs."""
    later = [new for new in added if contradictions(new.changes, one.changes)]
    if one.severity != "error" or not later:
        return one
    to, env = dict(one.to), dict(one.env)
    for new in later:
        to |= {knob: value for knob, value in new.to.items() if knob in to}
        env |= {name: value for name, value in new.env.items() if name in env}
    rules = " and ".join(dict.fromkeys(name_of(new.rule) for new in later))
    return replace(one, to=to, env=env, expects=f"it starts; {rules} says why with this value")
