"""What the machine asks the world to do.

Numbered, idempotent ("make it so"), and performed only after the journal has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.model import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    number: int
    server: Server
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    number: int
    server: Server
    requests: int
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The whole split, never a delta. Servers of weight 0 stay known to the proxy: open requests go on."""

    number: int
    servers: tuple[Server, ...]
    weights: Mapping[str, int]  # percent, by server name; sums to 100
    fallback: str  # the server that retries and an expired lease go to
    leased: str | None = None  # the server whose weight ends with the lease
    lease_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """Renew the lease of the route that the journal already has; changes nothing, so it is not journalled."""

    route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Wait until neither the proxy nor the engine has a request of this server open, or the deadline."""

    number: int
    server: Server
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    number: int
    server: Server


Effect = Launch | WarmUp | Route | KeepAlive | Drain | Retire
