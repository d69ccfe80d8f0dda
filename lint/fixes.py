"""The fixes of one command line: findings in order of urgency, and the changes to make. Pure.

Of two findings that want different values of one knob, only one is followed. A change that would bring a new
error takes along the change that prevents it, or is shown as a note. A change may make another possible:
with a larger batch a graph size is too small, with more GPUs the weights fit without offloading. The changes
of all rounds are one proposal.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from flettner.lint.missing_facts import concerns, hold_back, keep_to_limits
from flettner.lint.open_values import rests_on_open_value
from flettner.lint.relevance import Relevance, blame_suspects, find_line, generalise, is_among
from flettner.rules.precedence import Ordered, Outranked, Precedence, contradictions, ranked
from flettner.rules.table import HEALTH, name_of, slug_of
from flettner.vllm_facts.log_counts import read_counts
from flettner.vllm_facts.serve_config import Finding, LintRule, ServeConfig
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.values import Knob, Value, describe_changes

SEVERITIES = ("error", "warning", "info")
STEPS = 6  # of one rule that corrects itself
ROUNDS = 4  # 6,000 random commands needed at most three

_LAYOUT = frozenset({"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"})

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
        return apply_changes(config, self.to, self.env)


def find_fixes(
    config: ServeConfig,
    lints: Sequence[LintRule],
    live: Sequence[Finding] = (),
    *,
    standing: Sequence[Finding] = (),
    rank: Precedence = ranked,
) -> Fixes:
    """Findings of `lints` and `live` in order, and the changes to make together.

    `live`: findings of the policies on the running server. Only the first of those is
    followed, because one
    change at a time can be measured; flags that are wrong in themselves are corrected together.
    `standing`: findings of an earlier round that no change of flags can end, such as those of the log.
    A finding yields only to a finding that is shown: when one is replaced or dropped, all are ranked again.
    """
    reported = blame_suspects(_drop_duplicates(_run_lints(config, lints)))
    reported.sort(key=lambda finding: (_severity(finding), find_line(finding, config.log)))
    static, live = _merge_duplicates(
        [_settle(finding, config, lints) for finding in reported],
        [keep_to_limits(finding, config) for finding in live],
    )
    findings = [*live, *standing, *static]
    replaced = [0] * len(findings)
    dropped: dict[int, Outranked[Finding]] = {}
    while True:
        left = [finding for place, finding in enumerate(findings) if place not in dropped]
        attempt = _Attempt(config, lints, {id(finding) for finding in findings[: len(live)]})
        event = attempt.follow(rank(left))
        if event is None:
            return attempt.fixes(tuple(dropped.values()))
        place = next(at for at, finding in enumerate(findings) if finding is event.what)
        if isinstance(event, Outranked):
            dropped[place] = event
            continue
        dropped.clear()
        findings[place] = event.with_remedy if event.with_remedy and not replaced[place] else event.as_note
        replaced[place] += 1


def find_fixes_in_rounds(config: ServeConfig, lints: Sequence[LintRule]) -> Fixes:
    """The fixes of `config`, with what the changed command calls for.

    The lines of the log describe the first command; its facts and the findings that it gave bind every round.
    It ends early where a later round contradicts an earlier finding of another rule, unless that corrects an
    error: a later value corrects it, too, because no round brings one back.
    """
    fixes = find_fixes(config, lints)
    unlogged = _run_lints(replace(config, log=()), lints) if config.log else fixes.findings
    standing = [finding for finding in fixes.findings if not is_among(finding, unlogged)]
    for _ in range(ROUNDS):
        if not fixes.to and not fixes.env:
            break
        more = find_fixes(replace(fixes.after(config), log=()), lints, standing=standing)
        joined = _join(fixes, more, standing)
        if joined is None:
            break
        fixes = joined
    fixes = _drop_followed(fixes)
    compares = len(fixes.findings) > 1 and not all(finding.changes for finding in fixes.findings)
    relevance = Relevance(
        standing,
        frozenset(finding.rule for finding in unlogged),
        [_run_lints(case, lints) for case in generalise(config)] if compares else [],
        only_starts=bool(config.log) and not read_counts(config.log),
    )
    nearest = sorted(fixes.findings, key=relevance.rank)
    return replace(fixes, findings=tuple(sorted(nearest, key=_severity)))


def _join(first: Fixes, more: Fixes, standing: Sequence[Finding]) -> Fixes | None:
    """Both changes together; None if `more` changes nothing, or undoes what another rule asks for."""
    added = [
        finding
        for finding in more.findings
        if (finding.to or finding.env) and not is_among(finding, standing)
    ]
    earlier = [
        _with_later_values(finding, added)
        for finding in first.findings
        if finding.severity == "error" or not any(_replaces(new, finding) for new in added)
    ]
    if not added or any(contradictions(new.changes, finding.changes) for new in added for finding in earlier):
        return None
    rules = {finding.rule for finding in earlier}
    findings = sorted([*earlier, *added], key=_severity)
    outranked = [lost for lost in first.outranked if lost.by in rules | {finding.rule for finding in added}]
    outranked += [
        lost for lost in more.outranked if lost.what.rule not in {old.what.rule for old in outranked}
    ]
    return replace(
        first,
        findings=tuple(findings),
        outranked=tuple(outranked),
        to={**first.to, **more.to},
        env={**first.env, **more.env},
    )


def _drop_followed(fixes: Fixes) -> Fixes:
    """Drop those of the outranked findings whose changes are made after all, by a later round."""
    changes = {**fixes.to, **{f"env:{name}": value for name, value in fixes.env.items()}}
    left = [
        lost
        for lost in fixes.outranked
        if not lost.what.changes
        or any(name not in changes or changes[name] != value for name, value in lost.what.changes.items())
    ]
    return replace(fixes, outranked=tuple(left))


def _replaces(new: Finding, earlier: Finding) -> bool:
    """True for a later value of the same rule."""
    return new.rule == earlier.rule and bool(new.changes.keys() & earlier.changes.keys())


def _with_later_values(error: Finding, added: Sequence[Finding]) -> Finding:
    """An error with the values that later findings give to its knobs."""
    later = [new for new in added if contradictions(new.changes, error.changes)]
    if error.severity != "error" or not later:
        return error
    to, env = dict(error.to), dict(error.env)
    for new in later:
        to |= {knob: value for knob, value in new.to.items() if knob in to}
        env |= {name: value for name, value in new.env.items() if name in env}
    rules = " and ".join(dict.fromkeys(name_of(new.rule) for new in later))
    return replace(error, to=to, env=env, expects=f"it starts; {rules} says why with this value")


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A finding whose change alone would bring an error, with the change that prevents it, and as a note."""

    what: Finding
    with_remedy: Finding | None
    as_note: Finding


class _Attempt:
    """One pass over ranked findings, until a finding has to be replaced or dropped."""

    def __init__(self, config: ServeConfig, lints: Sequence[LintRule], live: Container[int]) -> None:
        self._config, self._lints, self._live = config, lints, live
        self._shown: list[Finding] = []
        self._outranked: list[Outranked[Finding]] = []
        self._followed: list[Finding] = []
        self._later: list[str] = []
        self._ended: dict[_Error, str] = {}  # errors of the command line, and the rule whose change ends each
        self._errors = find_errors(config, lints)

    def follow(self, ordered: Ordered[Finding]) -> _Replaced | Outranked[Finding] | None:
        findings, self._outranked = _restore_errors(ordered)
        if contradiction := _find_contradiction(findings) or self._find_wider_fix(findings):
            return contradiction
        followed: Finding | None = None
        unsolved, failed = self._find_unsolved(findings), self._find_failed(findings)
        for finding in sorted(findings, key=_severity):
            measured, waits = id(finding) in self._live, _waits_for_start(finding)
            if measured and followed is not None and finding.to:
                self._later.append(
                    f"{_describe(finding)}: one change at a time; first measure {_describe(followed)}"
                )
            elif (finding.to or finding.env) and unsolved and finding.severity != "error":
                self._later.append(
                    f"{_describe(finding)}: first end the error in the log ({name_of(unsolved.rule)})"
                )
            elif waits and failed and finding.rule != failed.rule:
                self._later.append(f"{_describe(finding)}: first start with {_describe(failed)}")
            elif finding.to or finding.env:
                if finding.severity == "error" and _error(finding) in self._ended:
                    return Outranked(finding, self._ended[_error(finding)], "an earlier change fixes it, too")
                if event := self._change(finding):
                    return event
                followed = finding if measured else followed
            self._shown.append(finding)
        return None

    def _find_unsolved(self, findings: Sequence[Finding]) -> Finding | None:
        """An error that only the log shows and that no change ends: other flags help to search its cause."""
        return self._find_failed([finding for finding in findings if not (finding.to or finding.env)])

    def _find_failed(self, findings: Sequence[Finding]) -> Finding | None:
        """An error that only the log shows."""
        errors = (finding for finding in findings if finding.severity == "error")
        errors = (finding for finding in errors if finding.rule not in HEALTH)
        return next((finding for finding in errors if _error(finding) not in self._errors), None)

    def _find_wider_fix(self, findings: Sequence[Finding]) -> Outranked[Finding] | None:
        """The kept error that a contradicting error's change fixes, too, unlike the other way round."""
        lost_errors = (loser.what for loser in self._outranked if loser.what.severity == "error")
        for lost in (error for error in lost_errors if error.to):
            for finding in findings:
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
        brought = (finding for finding in _run_lints(after, self._lints) if finding.severity == "error")
        for remedy in [
            _settle(finding, after, self._lints) for finding in brought if _error(finding) in brings
        ]:
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
            config = apply_changes(config, followed.to, followed.env)
        return config

    def fixes(self, dropped: Sequence[Outranked[Finding]]) -> Fixes:
        shown = {finding.rule for finding in self._shown}
        back = [lost.what for lost in dropped if lost.by not in shown]
        findings = sorted([*self._shown, *back], key=_severity)
        return Fixes(
            findings=tuple(findings),
            outranked=(*self._outranked, *(lost for lost in dropped if lost.by in shown)),
            to={knob: value for finding in self._followed for knob, value in finding.to.items()},
            env={name: value for finding in self._followed for name, value in finding.env.items()},
            later=tuple(self._later),
        )


def _waits_for_start(finding: Finding) -> bool:
    """Whether it is another layout that nothing asks for yet: a server that fails first has to start."""
    return finding.severity == "info" and not _LAYOUT.isdisjoint(finding.to)


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
    grave = {
        finding.rule
        for finding in ordered.winners
        if finding.severity == "error" and finding.rule not in HEALTH
    }
    back = [lost for lost in ordered.outranked if lost.what.severity == "error" and lost.by not in grave]
    return (
        [*(lost.what for lost in back), *ordered.winners],
        [lost for lost in ordered.outranked if not any(lost is finding for finding in back)],
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
    findings = [
        keep_to_limits(hold_back(finding, lint, config), config)
        for lint in lints
        if concerns(lint, config)
        for finding in lint.check(config)
        if not rests_on_open_value(finding, config)
    ]
    return sorted(findings, key=_severity)


def _drop_duplicates(findings: Iterable[Finding]) -> list[Finding]:
    """Drop findings that repeat the rule, the change and the sentence of an earlier finding."""
    distinct: list[Finding] = []
    for finding in findings:
        if not any(_key(finding) == _key(other) and finding.why == other.why for other in distinct):
            distinct.append(finding)
    return distinct


def _settle(finding: Finding, config: ServeConfig, lints: Sequence[LintRule]) -> Finding:
    """A finding with the values at which its own rule no longer fires, for rules that proceed in steps."""
    own = [lint for lint in lints if finding.rule in lint.rules]
    settled = finding
    for _ in range(STEPS):
        after = replace(apply_changes(config, settled.to, settled.env), log=())
        findings = (other for other in _run_lints(after, own) if other.rule == finding.rule)
        onward = next((other for other in findings if other.to.keys() & settled.to.keys()), None)
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
    static = [finding for finding in static if finding.to or finding.env or finding.rule not in changed]
    seen = {_key(finding): finding.evidence for finding in live if finding.to}
    stated = {_key(finding) for finding in static}
    return (
        [
            replace(finding, evidence={**finding.evidence, **seen.get(_key(finding), {})})
            for finding in static
        ],
        [finding for finding in live if not finding.to or _key(finding) not in stated],
    )


def _severity(finding: Finding) -> int:
    """The rank of the finding's severity; the gravest is first."""
    return SEVERITIES.index(finding.severity)


def _describe(finding: Finding) -> str:
    """`K1 requests-preempted (watermark 0.02)`"""
    return f"{name_of(finding.rule)} ({describe_changes(finding.to)})"


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, tuple(finding.to.items()), tuple(finding.env.items())


def _find_contradiction(findings: Sequence[Finding]) -> Outranked[Finding] | None:
    """The first finding that wants another value than an earlier finding."""
    for place, finding in enumerate(findings):
        for earlier in findings[:place]:
            if apart := contradictions(finding.changes, earlier.changes):
                return Outranked(finding, earlier.rule, f"it wants another {apart[0]}")
    return None


def apply_changes(
    config: ServeConfig, to: Mapping[Knob, Value], env: Mapping[str, str | None]
) -> ServeConfig:
    setting = {knob: value for knob, value in {**config.setting, **to}.items() if value is not None}
    environment = {name: value for name, value in {**config.env, **env}.items() if value is not None}
    return replace(config, setting=setting, env=environment)


def find_errors(config: ServeConfig, lints: Sequence[LintRule]) -> dict[_Error, str]:
    """Why a command line does not start, by the lints and by vLLM's own checks.

    The log is left out, because it describes another start.
    """
    config = replace(config, log=())
    errors = {
        _error(finding): finding.why for finding in _run_lints(config, lints) if finding.severity == "error"
    }
    return {(finding.rule, finding.source): finding.why for finding in find_problems(config)} | errors


def _error(finding: Finding) -> _Error:
    return finding.rule, finding.source
