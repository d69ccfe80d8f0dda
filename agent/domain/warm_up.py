"""What a new server is asked before its first share, so that its caches hold what clients share. Pure."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """The text with which the prompts of many clients begin. It is kept in no record.

    `chat`: a system prompt, which the server's template wraps; else the beginning of a completion. `model`:
    the name that clients ask for; empty: each that the server serves, as each adapter has a cache of its own.
    """

    text: str = field(repr=False)
    chat: bool = False
    model: str = ""
