"""The JSON document of one finding of lint on the flags in force."""

from pydantic import Field

from flettner.agent.api.document_types import Document, DocumentText, Values
from flettner.rules.table import slug_of
from flettner.vllm_facts.serve_config import Finding, FindingSeverity
from flettner.vllm_facts.values import ChangeClass


class FindingDocument(Document):
    rule: str
    slug: str = Field(description="what the rule says, in a few words; empty for a rule of a third party")
    severity: FindingSeverity
    klass: ChangeClass = Field(serialization_alias="class")
    to: Values = Field(description="the values that the rule would set; empty: none")
    why: DocumentText
    expects: DocumentText
    source: str


def finding_of(finding: Finding) -> FindingDocument:
    return FindingDocument(
        rule=finding.rule,
        slug=slug_of(finding.rule),
        severity=finding.severity,
        klass=finding.klass,
        to=finding.to,
        why=finding.why,
        expects=finding.expects,
        source=finding.source,
    )
