"""How near a finding is to what its reader saw: the order of findings within a severity. Pure.

What the log alone shows is of this server and of this start. What the flags show may be its cause or not.
What lint says of every server with this model, or of every server, explains nothing that one of them does.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from flettner.lint.missing_facts import is_held_back
from flettner.rules.table import REMARKS, START
from flettner.vllm_facts.serve_config import Finding, ServeConfig

UNEXPLAINED, CONTAINER, TOO_LARGE, UNDER_LOADED, DURATION = "F10", "U5", "D2", "C2", "F6"
_NAME = re.compile(r"--[a-z]|\b[A-Z\d]+_[A-Z]")  # of a flag or a variable
_MESSAGE = re.compile(r"(\S{1,100}\.py): '([^']+)'")
FROM_LOG, UNEXPLAINED_IN_LOG, FROM_COMMAND, NOTE, LAST = range(5)


@dataclass(frozen=True, slots=True)
class Relevance:
    """`logged`: findings that only the log shows. `flagged`: the rules that have findings without it.

    `general`: what lint says of the cases of `generalise`, which orders the notes.
    """

    logged: Sequence[Finding]
    flagged: Collection[str]
    general: Sequence[Sequence[Finding]]
    only_starts: bool = False  # the log has no request: what is asked may be how long the start takes

    def rank(self, finding: Finding) -> tuple[int, int]:
        """The nearest first. Findings of one rank keep their order."""
        if finding.rule == UNEXPLAINED and finding.severity == "error":
            return LAST, 0  # faults that are certain come before one that nobody knows
        if is_note(finding) and finding.rule in REMARKS:
            return (NOTE, 1) if finding.rule == DURATION and self.only_starts else (LAST, 0)
        if finding.rule == UNDER_LOADED:
            return NOTE, 0  # what the counts are, behind each cause of them
        if is_among(finding, self.logged):
            if finding.rule == UNEXPLAINED:
                return UNEXPLAINED_IN_LOG, 0
            return FROM_LOG, int(finding.rule not in self.flagged)  # what both show is surest
        if finding.changes and any(_cite_one_message(finding, other) for other in self.logged):
            return FROM_LOG, 0
        if finding.rule == CONTAINER and finding.severity != "info":
            return FROM_COMMAND, -1  # nobody reaches the server, or it ends: speed matters less
        if finding.rule == TOO_LARGE and finding.severity == "error" and not finding.changes:
            return FROM_COMMAND, -1  # no flag ends it: other changes are in vain
        if not is_note(finding):
            general = not finding.changes and any(is_among(finding, said) for said in self.general)
            return FROM_COMMAND, int(is_held_back(finding) or general)
        return NOTE, sum(is_among(finding, said) for said in self.general)


def is_note(finding: Finding) -> bool:
    return finding.severity == "info" and not finding.changes


def is_among(finding: Finding, others: Iterable[Finding]) -> bool:
    """Whether one of the others says the same."""
    return any(finding.rule == other.rule and finding.why == other.why for other in others)


def _cite_one_message(finding: Finding, other: Finding) -> bool:
    """Whether both are about one message of vLLM, of which either may quote only the beginning."""
    quotes, others = _MESSAGE.findall(finding.source), _MESSAGE.findall(other.source)
    return any(
        file == place and (text.startswith(begin) or begin.startswith(text))
        for file, text in quotes
        for place, begin in others
    )


def blame_suspects(findings: Sequence[Finding]) -> list[Finding]:
    """Suspected reasons not to start as errors, where nothing explains the error of the log."""
    errors = [each for each in findings if each.rule == UNEXPLAINED and each.severity == "error"]
    if not errors or any(_NAME.search(f"{each.why} {each.expects}") for each in errors):
        return list(findings)
    return [
        replace(each, severity="error", why=f"{each.why}; it may be why the start in the log failed")
        if each.severity == "warning" and each.changes and each.rule in START
        else each
        for each in findings
    ]


def generalise(config: ServeConfig) -> tuple[ServeConfig, ServeConfig]:
    """Any server of this model, and of any model, with this release and GPU."""
    known = {"model": config.setting["model"]} if "model" in config.setting else {}
    model = replace(ServeConfig(setting=known), card=config.card, gpus=config.gpus, version=config.version)
    return (
        replace(model, model=config.model, estimate=config.estimate, profile=config.profile),
        replace(model, setting={}),
    )


def find_line(finding: Finding, log: Sequence[str]) -> int:
    """The place of the line that the finding quotes, the last of several; behind the log for no line.

    Of several errors the first is the cause: the processes that wait for the failed one report it in turn.
    """
    quoted = finding.evidence.get("line")
    if not isinstance(quoted, str):
        return len(log)
    return next((at for at in range(len(log) - 1, -1, -1) if quoted in log[at]), len(log))
