"""What the last seconds say about one server, and why it fails if it does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

FailureKind = Literal["paused", "silent", "wedged", "unreached", "errors"]
"""`silent`: it answers neither its scrapes nor a request. `wedged`: it answers scrapes and runs requests, but
computes no token. `unreached`: it refuses connections. `errors`: most of its requests fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """Signs of one server; the durations are without interruption until now."""

    silent_s: float = 0.0  # its scrapes have failed, and it has answered no request
    fresh_s: float = 0.0  # its scrapes have been answered
    still_s: float = 0.0  # it has had requests, computed no token and answered none
    heard: bool = False  # requests of the last second count below
    open: float = 0.0  # its running and waiting requests
    paused: bool = False  # its container is
    advances: bool = False  # it computed tokens in the last second
    of: float = 0.0  # its last requests, at most 20; older ones count less
    bad: float = 0.0  # of them, failed
    unreached: float = 0.0  # of them, without a connection
    pinned: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """`of` and `bad` of each group of clients that pinned its requests to the server."""
    failures: int = 0  # in a row, each soon after the one before
    back_at: datetime | None = None  # when the last one ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A lasting failure. `times`: how many in a row, which prolongs the wait for the server's return."""

    kind: FailureKind
    why: str
    since: datetime
    times: int = 1
