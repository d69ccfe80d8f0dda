"""Speculative decoding as the simulator has it: a step verifies drafted tokens of each sequence that decodes.

The acceptance is flat over the load, as measured in vllm-project/vllm#26504: what changes its sign with the
load is the gain, since the drafted tokens are computed too. A draft costs a share of the time in which a step
reads the weights.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

COSTS: Mapping[str, float] = {"ngram": 0.01, "ngram_gpu": 0.005, "suffix": 0.01}
HEAD = 0.07
"""Of a step's reading of the weights, for each token of a draft: looked up in the text, or by a head of the
model (a layer of 32, the vocabulary, and the launch of both). Neither is the number of a policy."""


@dataclass(slots=True, kw_only=True)
class Drafts:
    """`accepted`: the probability that a drafted token is accepted, where those before it were."""

    tokens: int  # drafted for each sequence
    accepted: float
    method: str
    random: Random
    drafts: int = 0
    drafted: int = 0
    accepted_tokens: int = 0

    @property
    def cost(self) -> float:
        """Of a drafted token, as a share of the time in which a step reads the weights."""
        return COSTS.get(self.method, HEAD)

    def verify(self, drafted: int) -> int:
        """Return how many tokens of a draft are accepted, and count it."""
        accepted = next((n for n in range(drafted) if self.random.random() >= self.accepted), drafted)
        self.drafts += 1
        self.drafted += drafted
        self.accepted_tokens += accepted
        return accepted


def read_drafts(text: str | None, accepted: float, random: Random) -> Drafts | None:
    """Return those of `--speculative-config`. Raises ValueError for what vLLM or the simulator lacks."""
    if text is None:
        return None
    try:
        entries = json.loads(text)
        tokens, method = entries["num_speculative_tokens"], entries["method"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"speculative_config {text}: expected JSON with method and num_speculative_tokens"
        ) from None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ValueError(f"num_speculative_tokens must be a positive integer, got {tokens}")
    return Drafts(tokens=tokens, accepted=accepted, method=str(method), random=random)
