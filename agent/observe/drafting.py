"""Speculative decoding as vLLM counts it: how much of it is accepted, and the tokens of a streamed chunk."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flettner.agent.domain.reading import Drafting, EngineSample, Request

FADES = 0.9  # weight that the tokens of earlier scrapes keep at each scrape


def summarize_drafts(samples: Sequence[EngineSample]) -> Drafting | None:
    drafts, drafted = sum(sample.drafts for sample in samples), sum(sample.drafted for sample in samples)
    if drafts <= 0 or drafted <= 0:
        return None
    accepted = sum(sample.accepted for sample in samples)
    return Drafting(drafts=drafts, drafted=drafted, accepted_ratio=min(1.0, accepted / drafted))


@dataclass(slots=True)
class ChunkSize:
    """Tokens of a streamed chunk: a step gives a sequence one token, and the drafted ones that are accepted.

    The proxy counts chunks. Without this correction a server seems slower the more drafts are accepted.
    """

    generated: float = 0.0  # tokens of answers, of which the latest scrapes count most
    accepted: float = 0.0  # of them

    def add_scrape(self, sample: EngineSample) -> None:
        self.generated = FADES * self.generated + sample.generation_tokens
        self.accepted = FADES * self.accepted + sample.accepted

    def count_tokens(self, request: Request) -> Request:
        steps = self.generated - self.accepted
        if not request.tokens or self.accepted <= 0 or steps <= 0:
            return request
        return replace(request, tokens=1 + round((request.tokens - 1) * self.generated / steps))
