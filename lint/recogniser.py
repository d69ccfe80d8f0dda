"""Checks of single lines of a server's log."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck
from flettner.vllm_facts.start_facts import LONGEST_LINE, join_log

LOG = Needs(facts=("log",))

Recognise = Callable[[re.Match[str], ServeConfig], Finding | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recogniser(DeploymentCheck):
    """A check of one pattern of the log. Of several matching lines, the last one with a finding counts.

    `beside`: a pattern that the log has, too. Without it, or where `is_cause` is False, a line of `pattern`
    has another cause.
    """

    pattern: str  # compiled on use: most commands are checked without a log
    beside: str = ""
    is_cause: Callable[[ServeConfig], bool] = lambda _: True

    def explains(self, line: str, config: ServeConfig) -> bool:
        """Whether it is about this line of the log, even if the line is of another start."""
        if not re.search(self.pattern, line):
            return False
        return _stands_in(join_log(config.log), self.beside) and self.is_cause(config)


def recogniser(
    rule: str,
    pattern: str,
    recognise: Recognise,
    *,
    reports: str,
    source: str,
    evidence_for: str = "",
    evidence_against: str = "",
    beside: str = "",
    is_cause: Callable[[ServeConfig], bool] = lambda _: True,
) -> Recogniser:
    def find(config: ServeConfig) -> Iterable[Finding]:
        text = join_log(config.log)
        if not text or not re.search(pattern, text, re.MULTILINE) or not _stands_in(text, beside):
            return ()
        for line in reversed(config.log):
            match = re.search(pattern, line[:LONGEST_LINE], re.MULTILINE)
            if match and (finding := recognise(match, config)):
                return (finding,)
        return ()

    return Recogniser(
        rules=(rule,),
        find=find,
        reports=reports,
        source=source,
        evidence_for=evidence_for,
        evidence_against=evidence_against,
        needs=LOG,
        pattern=pattern,
        beside=beside,
        is_cause=is_cause,
    )


def _stands_in(text: str, beside: str) -> bool:
    return not beside or re.search(beside, text, re.MULTILINE) is not None
