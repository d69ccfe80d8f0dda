"""What the machine asks the world to do.

Numbered, idempotent ("make it so"), and performed only after the journal has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.model import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    number: int
    server: Server
    deadline_s: float
    kind: Literal["launch"] = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    number: int
    server: Server
    requests: int
    deadline_s: float
    kind: Literal["warm_up"] = "warm_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The whole split, never a delta. Servers of weight 0 stay known to the proxy: open requests go on."""

    number: int
    servers: tuple[Server, ...]
    weights: Mapping[str, int]  # percent, by server name; sums to 100
    fallback: str  # the server that retries and an expired lease go to
    leased: str | None = None  # the server whose weight ends with the lease
    lease_s: float = 0.0
    kind: Literal["route"] = "route"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """Renew the lease of the route that the journal already has; changes nothing, so it is not journalled."""

    route: Route
    kind: Literal["keep_alive"] = "keep_alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Wait until neither the proxy nor the engine has a request of this server open, or the deadline."""

    number: int
    server: Server
    deadline_s: float
    kind: Literal["drain"] = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    number: int
    server: Server
    kind: Literal["retire"] = "retire"


Effect = Launch | WarmUp | Route | KeepAlive | Drain | Retire
