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
    """A check of one pattern of the log. Of several matching lines, the last one with a finding counts."""

    pattern: str  # compiled on use: most commands are checked without a log


def recogniser(
    rule: str,
    pattern: str,
    recognise: Recognise,
    *,
    reports: str,
    source: str,
    evidence_for: str = "",
    evidence_against: str = "",
) -> Recogniser:
    def find(config: ServeConfig) -> Iterable[Finding]:
        if not re.search(pattern, join_log(config.log), re.MULTILINE):
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
    )
