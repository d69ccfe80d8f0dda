"""What the machine asks the world to do.

Numbered, idempotent ("make it so"), and performed only after the journal has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.domain.model import Server, Strategy
from vllm_facts.values import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Ask what would come of running `servers` with `setting`; nothing is touched."""

    number: int
    servers: tuple[Server, ...]  # all that serve now
    setting: Setting
    wanted: Strategy | Literal["auto"]
    kind: Literal["preflight"] = "preflight"


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
class Examine:
    """Ask both the golden prompts, and compare. Without `green`: blue alone, for later, as it is to stop."""

    number: int
    blue: Server
    green: Server | None
    deadline_s: float
    kind: Literal["examine"] = "examine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The whole split, never a delta. Servers of weight 0 stay known to the proxy: open requests go on.

    `closed_s` above 0: every weight is 0, and who asks is answered 503 with that `Retry-After`.
    """

    number: int
    servers: tuple[Server, ...]
    weights: Mapping[str, int]  # percent, by server name; sums to 100, or all 0 when closed
    # takes retries and an expired lease where no other that stays has a weight; empty when closed
    fallback: str
    closed_s: float = 0.0
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
class Stop:
    """End it, and free what it holds, so that a Launch starts the same server again."""

    number: int
    server: Server
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    number: int
    server: Server
    kind: Literal["retire"] = "retire"


Effect = Preflight | Launch | WarmUp | Examine | Route | KeepAlive | Drain | Stop | Retire
