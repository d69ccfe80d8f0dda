"""The JSON document of a preflight check's result."""

from pydantic import Field

from flettner.agent.api.document_types import Document, DocumentText
from flettner.agent.domain.model import Strategy
from flettner.agent.domain.state import Suggestion


class PreflightDocument(Document):
    strategy: Strategy = Field(
        description="hot: the servers that run take the values; surge: an additional server; "
        "replace: servers are replaced one by one; "
        "swap: the only server is replaced, with a planned outage"
    )
    why: DocumentText = Field(description="why this strategy")
    start_s: float | None = Field(description="expected duration of a start; null: unknown")
    outage_s: float = Field(description="duration of the planned outage; 0: none")
    notes: list[DocumentText] = Field(description="warm or cold start, and vLLM's checks of the flags")
    patch: DocumentText = Field(description="change of the manifest, to commit where it is kept; or empty")
    owner: DocumentText = Field(
        description="what writes the manifest: the patch is to be committed; or empty"
    )


def preflight_of(suggestion: Suggestion) -> PreflightDocument | None:
    """None before the check has ended."""
    found = suggestion.preflight
    if not suggestion.digest:
        return None
    return PreflightDocument(
        strategy=found.strategy,
        why=found.why,
        start_s=found.start_s,
        outage_s=found.outage_s,
        notes=list(found.notes),
        patch=found.patch,
        owner=found.owner,
    )
