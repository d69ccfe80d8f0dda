"""The fixes of one command line: findings in order of urgency, and the changes to make. Pure.

Of two findings that want different values of one knob, only one is followed. A change that would bring a new
error takes along the change that prevents it, or is shown as a note. A change may make another one possible:
with a larger batch a graph size is too small, with more GPUs the weights fit without offloading. The changes
of all rounds are one proposal.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from flettner.lint.missing_facts import hold_back
from flettner.rules.precedence import Ordered, Outranked, Precedence, contradictions, ranked
from flettner.rules.table import HEALTH, name_of, slug_of
from flettner.vllm_facts.serve_config import Finding, LintRule, ServeConfig
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.values import Knob, Value, describe_changes

SEVERITIES = ("error", "warning", "info")
STEPS = 6  # of one rule that corrects itself
ROUNDS = 4  # 6,000 random commands needed at most three

_Error = tuple[str, str]
"""A reason not to start: the rule and its source, which stay the same while numbers change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixes:
    """`findings`: errors first; within a severity, the most urgent first. `to` and `env`: the changes."""

    findings: tuple[Finding, ...] = ()
    outranked: tuple[Outranked[Finding], ...] = ()
    to: Mapping[Knob, Value] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    later: tuple[str, ...] = ()  # what is not among the changes, and why

    def after(self, config: ServeConfig) -> ServeConfig:
        return _apply(config, self.to, self.env)


def find_fixes(
    config: ServeConfig,
    lints: Sequence[LintRule],
    live: Sequence[Finding] = (),
    *,
    rank: Precedence = ranked,
) -> Fixes:
    """Findings of `lints` and `live` in order, and the changes to make together.

    `live`: findings of the policies on the running server. Only the first of those is followed, because one
    change at a time can be measured; flags that are wrong in themselves are corrected together.
    A finding yields only to a finding that is shown: when one is replaced or dropped, all are ranked again.
    """
    static, live = _merge_duplicates(
        [_settle(one, config, lints) for one in _drop_duplicates(_run_lints(config, lints))], live
    )
    findings = [*live, *static]
    replaced = [0] * len(findings)
    dropped: dict[int, Outranked[Finding]] = {}
    while True:
        left = [finding for place, finding in enumerate(findings) if place not in dropped]
        attempt = _Attempt(config, lints, {id(one) for one in findings[: len(live)]})
        event = attempt.follow(rank(left))
        if event is None:
            return attempt.fixes(tuple(dropped.values()))
        place = next(at for at, one in enumerate(findings) if one is event.what)
        if isinstance(event, Outranked):
            dropped[place] = event
            continue
        dropped.clear()
        findings[place] = event.with_remedy if event.with_remedy and not replaced[place] else event.as_note
        replaced[place] += 1


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


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A finding whose change alone would bring an error, with the change that prevents it, and as a note."""

    what: Finding
    with_remedy: Finding | None
    as_note: Finding


class _Attempt:
    """One pass over ranked findings, until one has to be replaced or dropped."""

    def __init__(self, config: ServeConfig, lints: Sequence[LintRule], live: Container[int]) -> None:
        self._config, self._lints, self._live = config, lints, live
        self._found: list[Finding] = []
        self._outranked: list[Outranked[Finding]] = []
        self._followed: list[Finding] = []
        self._later: list[str] = []
        self._ended: dict[_Error, str] = {}  # errors of the command line, and the rule whose change ends each
        self._errors = find_errors(config, lints)

    def follow(self, ordered: Ordered[Finding]) -> _Replaced | Outranked[Finding] | None:
        kept, self._outranked = _restore_errors(ordered)
        if contradiction := _find_contradiction(kept) or self._find_wider_fix(kept):
            return contradiction
        followed: Finding | None = None
        unsolved = self._find_unsolved(kept)
        for finding in sorted(kept, key=lambda finding: SEVERITIES.index(finding.severity)):
            measured = id(finding) in self._live
            if measured and followed is not None and finding.to:
                self._later.append(
                    f"{_describe(finding)}: one change at a time; first measure {_describe(followed)}"
                )
            elif (finding.to or finding.env) and unsolved and finding.severity != "error":
                self._later.append(
                    f"{_describe(finding)}: first end the error in the log ({name_of(unsolved.rule)})"
                )
            elif finding.to or finding.env:
                if finding.severity == "error" and _error(finding) in self._ended:
                    return Outranked(finding, self._ended[_error(finding)], "an earlier change fixes it, too")
                if event := self._change(finding):
                    return event
                followed = finding if measured else followed
            self._found.append(finding)
        return None

    def _find_unsolved(self, kept: Sequence[Finding]) -> Finding | None:
        """An error that only the log shows and no change ends: other flags may be part of the search."""
        notes = (one for one in kept if one.severity == "error" and not (one.to or one.env))
        notes = (one for one in notes if one.rule not in HEALTH)
        return next((one for one in notes if _error(one) not in self._errors), None)

    def _find_wider_fix(self, kept: Sequence[Finding]) -> Outranked[Finding] | None:
        """The kept error that a contradicting error's change fixes, too, unlike the other way round."""
        for lost in (one.what for one in self._outranked if one.what.severity == "error" and one.what.to):
            for finding in kept:
                if finding.severity != "error" or not contradictions(lost.changes, finding.changes):
                    continue
                both = {_error(lost), _error(finding)}
                if not both & find_errors(self._with(lost), self._lints).keys():
                    return Outranked(finding, lost.rule, "that change fixes it, too")
        return None

    def _change(self, finding: Finding) -> _Replaced | None:
        """Take over the change of a finding, unless it brings an error."""
        after = self._with(finding)
        errors = find_errors(after, self._lints)
        if brings := errors.keys() - self._errors.keys():
            first = min(brings)
            note = _build_note(finding, f"{name_of(first[0])}: {errors[first]}")
            return _Replaced(finding, self._remedied(finding, after, brings), note)
        self._ended |= dict.fromkeys(self._errors.keys() - errors.keys(), finding.rule)
        self._errors = errors
        self._followed.append(finding)
        return None

    def _remedied(self, finding: Finding, after: ServeConfig, brings: AbstractSet[_Error]) -> Finding | None:
        """The finding together with the changes that prevent the errors it would bring."""
        after = replace(after, log=())
        remedied, solved = finding, set[_Error]()
        brought = (found for found in _run_lints(after, self._lints) if found.severity == "error")
        for remedy in [_settle(found, after, self._lints) for found in brought if _error(found) in brings]:
            if any(contradictions(remedy.changes, other.changes) for other in (*self._followed, remedied)):
                return None
            solved.add(_error(remedy))
            remedied = _combine(remedied, remedy)
        left = find_errors(self._with(remedied), self._lints)
        fine = solved == brings and left.keys() <= self._errors.keys()
        return remedied if fine else None

    def _with(self, finding: Finding) -> ServeConfig:
        config = self._config
        for followed in (*self._followed, finding):
            config = _apply(config, followed.to, followed.env)
        return config

    def fixes(self, dropped: Sequence[Outranked[Finding]]) -> Fixes:
        shown = {finding.rule for finding in self._found}
        back = [lost.what for lost in dropped if lost.by not in shown]
        found = sorted([*self._found, *back], key=lambda finding: SEVERITIES.index(finding.severity))
        return Fixes(
            findings=tuple(found),
            outranked=(*self._outranked, *(lost for lost in dropped if lost.by in shown)),
            to={knob: value for one in self._followed for knob, value in one.to.items()},
            env={name: value for one in self._followed for name, value in one.env.items()},
            later=tuple(self._later),
        )


def _combine(finding: Finding, remedy: Finding) -> Finding:
    """`finding` with the change of `remedy`, without which the server would not start."""
    return replace(
        finding,
        klass="gated" if "gated" in (finding.klass, remedy.klass) else finding.klass,
        to={**finding.to, **remedy.to},
        env={**finding.env, **remedy.env},
        risks=f"{finding.risks}; the server would not start without {_describe(remedy)}; {remedy.risks}",
        evidence={**remedy.evidence, **finding.evidence},
    )


def _build_note(finding: Finding, error: str) -> Finding:
    """`finding` without its change."""
    return replace(
        finding,
        klass="note",
        to={},
        env={},
        expects=f"{_describe(finding)} would help, but the server would not start with it: {error}",
        risks="",
    )


def _restore_errors(ordered: Ordered[Finding]) -> tuple[list[Finding], list[Outranked[Finding]]]:
    """Restore errors that only a non-error outranks, or the health that they may explain."""
    grave = {one.rule for one in ordered.kept if one.severity == "error" and one.rule not in HEALTH}
    back = [lost for lost in ordered.outranked if lost.what.severity == "error" and lost.by not in grave]
    return (
        [*(lost.what for lost in back), *ordered.kept],
        [lost for lost in ordered.outranked if not any(lost is one for one in back)],
    )


def build_rows(finding: Finding, config: ServeConfig, assumed: Mapping[Knob, Value]) -> list[dict[str, Any]]:
    """One JSON row for each changed knob or variable; a single row without a knob if there is no change."""
    common = {
        "rule": finding.rule,
        "slug": slug_of(finding.rule),
        "class": finding.klass,
        "severity": finding.severity,
    }
    texts = {
        "why": finding.why,
        "expects": finding.expects,
        "risks": finding.risks,
        "evidence": dict(finding.evidence),
        "source": finding.source,
    }
    changes: list[dict[str, Value]] = [
        {"knob": knob, "current": config.setting.get(knob, assumed.get(knob)), "suggested": value}
        for knob, value in finding.to.items()
    ]
    changes += [
        {"knob": f"env:{name}", "current": config.env.get(name), "suggested": value}
        for name, value in finding.env.items()
    ]
    nothing: dict[str, Value] = {"knob": None, "current": None, "suggested": None}
    return [{**common, **change, **texts} for change in changes or [nothing]]


def _run_lints(config: ServeConfig, lints: Iterable[LintRule]) -> list[Finding]:
    found = [hold_back(finding, lint, config) for lint in lints for finding in lint.check(config)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _drop_duplicates(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without those that repeat the rule, the change and the sentence of an earlier one."""
    kept: list[Finding] = []
    for finding in findings:
        if not any(_key(finding) == _key(one) and finding.why == one.why for one in kept):
            kept.append(finding)
    return kept


def _settle(finding: Finding, config: ServeConfig, lints: Sequence[LintRule]) -> Finding:
    """A finding with the values at which its own rule no longer fires, for rules that proceed in steps."""
    own = [lint for lint in lints if finding.rule in lint.rules]
    settled = finding
    for _ in range(STEPS):
        after = replace(_apply(config, settled.to, settled.env), log=())
        found = (one for one in _run_lints(after, own) if one.rule == finding.rule)
        onward = next((one for one in found if one.to.keys() & settled.to.keys()), None)
        if onward is None:
            return settled
        settled = replace(settled, to={**settled.to, **onward.to}, expects=onward.expects, risks=onward.risks)
    return finding  # it goes in circles


def _merge_duplicates(
    static: Sequence[Finding], live: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """Merge findings that flags and traffic share.

    The finding on the flags keeps the evidence of the traffic; a note on the flags yields to a change by the
    same rule.
    """
    changed = {finding.rule for finding in live if finding.to}
    static = [one for one in static if one.to or one.env or one.rule not in changed]
    seen = {_key(finding): finding.evidence for finding in live if finding.to}
    known = {_key(finding) for finding in static}
    return (
        [replace(one, evidence={**one.evidence, **seen.get(_key(one), {})}) for one in static],
        [one for one in live if not one.to or _key(one) not in known],
    )


def _describe(finding: Finding) -> str:
    """`K1 requests-preempted (watermark 0.02)`"""
    return f"{name_of(finding.rule)} ({describe_changes(finding.to)})"


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, tuple(finding.to.items()), tuple(finding.env.items())


def _find_contradiction(findings: Sequence[Finding]) -> Outranked[Finding] | None:
    """The first finding that wants another value than one before it."""
    for place, finding in enumerate(findings):
        for earlier in findings[:place]:
            if apart := contradictions(finding.changes, earlier.changes):
                return Outranked(finding, earlier.rule, f"it wants another {apart[0]}")
    return None


def _apply(config: ServeConfig, to: Mapping[Knob, Value], env: Mapping[str, str | None]) -> ServeConfig:
    setting = {knob: value for knob, value in {**config.setting, **to}.items() if value is not None}
    environment = {name: value for name, value in {**config.env, **env}.items() if value is not None}
    return replace(config, setting=setting, env=environment)


def find_errors(config: ServeConfig, lints: Sequence[LintRule]) -> dict[_Error, str]:
    """Why a command line does not start, by the lints and by vLLM's own checks.

    The log is left out, because it describes another start.
    """
    config = replace(config, log=())
    found = {_error(one): one.why for one in _run_lints(config, lints) if one.severity == "error"}
    return {(one.rule, one.source): one.why for one in find_problems(config)} | found


def _error(finding: Finding) -> _Error:
    return finding.rule, finding.source
