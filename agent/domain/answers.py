"""Golden prompts, the answers of a server to them, and the comparison of green with blue."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenAnswer:
    """A server's answer to one golden prompt. Kept in memory only: prompts may be private."""

    text: str = ""
    finish_reason: str = ""  # "stop", "length"; "failed": no answer
    length: int = 0  # tokens
    tokens: tuple[str, ...] = ()  # if the server returns log-probabilities
    logprobs: tuple[float, ...] = ()  # one per token


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """The result of the comparison; counts only, for the journal. `_blue`: blue against itself."""

    ok: bool
    why: str
    prompts: int = 0
    same: float = 0.0  # share of prompts answered as by blue, mean over blue's two answers
    same_blue: float = 0.0
    contradicted: float = 0.0  # share of prompts that diverge at a token that one side was sure of
    contradicted_blue: float = 0.0
    parted_at: float | None = None
    """Median number of equal tokens before green diverges from blue; None: never."""
    drift: float | None = None  # mean |difference| of log-probabilities over equal prefixes, nats
    drift_blue: float | None = None
    length: float | None = None  # green's tokens as a share of blue's
    empty: int = 0  # of green's answers
    looping: int = 0
    refusing: int = 0
    failed: int = 0
    bad_blue: int = 0  # blue's first answers with one of these four flaws
