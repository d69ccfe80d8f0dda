"""The effects that the machine requests.

They are idempotent. All but the renewals are numbered, and journalled before they are performed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, TypeVar

from flettner.agent.domain.model import Adapter, Server, Strategy
from flettner.vllm_facts.values import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Compute what running `servers` with `setting` would take; changes nothing."""

    number: int
    servers: tuple[Server, ...]  # all servers that serve now
    setting: Setting
    start: Setting = field(default_factory=dict)  # the image, program and environment that the change names
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
    """Send the golden prompts to both and compare. Without `green`: to blue alone, before it stops."""

    number: int
    blue: Server
    green: Server | None
    deadline_s: float
    compare: bool = True  # False: only the operator's own command
    kind: Literal["examine"] = "examine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The full split, never a delta. Servers of weight 0 stay known to the proxy: open requests go on.

    `closed_s` above 0: every weight is 0. New requests wait for the next split where the proxy holds them;
    others get 503 with that `Retry-After`.
    """

    number: int
    servers: tuple[Server, ...]
    weights: Mapping[str, int]  # percent, by server name; sums to 100, or all 0 when closed
    # gets retries and an expired lease's share if no other remaining server has a weight; empty when closed
    fallback: str
    closed_s: float = 0.0
    leased: str | None = None  # the server whose weight ends with the lease
    lease_s: float = 0.0
    kind: Literal["route"] = "route"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """Renew the lease of the journalled route; changes nothing, so it is not journalled."""

    route: Route
    kind: Literal["keep_alive"] = "keep_alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Wait until neither the proxy nor the engine has an open request of this server, or for the deadline."""

    number: int
    server: Server
    deadline_s: float
    kind: Literal["drain"] = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop the server and free its resources; a Launch starts the same server again.

    `keep`: the number of its replicas that keep serving; the others drain and stop.
    """

    number: int
    server: Server
    keep: int = 0
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    number: int
    server: Server
    kind: Literal["retire"] = "retire"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetKnobs:
    """Put values in force while the servers run: `values`, and those of the start for other hot knobs.

    With a lease they go back by themselves to the values that were last set without one.
    """

    number: int
    epoch: int  # of the daemon that requested it
    servers: tuple[Server, ...]
    values: Setting
    lease_s: float | None = None
    kind: Literal["set_knobs"] = "set_knobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepKnobs:
    """Repeat the journalled change, which renews its lease; changes nothing, so it is not journalled.

    A server that was started again meanwhile gets the values again.
    """

    change: SetKnobs
    kind: Literal["keep_knobs"] = "keep_knobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAdapters:
    """Load adapters into a server that runs, and unload others. Repeated until it serves the fleet's."""

    server: Server
    load: tuple[Adapter, ...]
    unload: tuple[str, ...] = ()
    kind: Literal["keep_adapters"] = "keep_adapters"


Renewal = KeepAlive | KeepKnobs | KeepAdapters
Effect = Preflight | Launch | WarmUp | Examine | Route | Drain | Stop | Retire | SetKnobs | Renewal

Kind = TypeVar("Kind", Launch, Drain, Stop, Retire)
Awaited = Preflight | Launch | WarmUp | Examine | Route | Drain | Stop | Retire | SetKnobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """How far the effects are: one at a time is awaited, and requested again if it fails."""

    last_number: int = 0
    awaited: Awaited | None = None  # the effect whose outcome the machine waits for
    retry_at: datetime | None = None  # when the awaited effect, which failed, is requested again
    tries: int = 0  # how often it failed

    @property
    def next_number(self) -> int:
        return self.last_number + 1

    def is_awaited(self, number: int) -> bool:
        return self.awaited is not None and self.awaited.number == number

    def awaited_as(self, kind: type[Kind]) -> Kind:
        """The awaited effect, whose outcome tells its kind. Raises AssertionError for another one."""
        if isinstance(self.awaited, kind):
            return self.awaited
        raise AssertionError(f"{kind.__name__} is not awaited, but {self.awaited}")

    def await_effect(self, effect: Awaited) -> "Effects":
        """Await this numbered effect instead of the earlier one."""
        return replace(self, last_number=effect.number, awaited=effect, retry_at=None)

    def await_nothing(self) -> "Effects":
        return replace(self, awaited=None)

    @property
    def stopping(self) -> str:
        """The server that is being stopped, with all its replicas; empty: none."""
        return self.awaited.server.name if isinstance(self.awaited, Stop) and not self.awaited.keep else ""

    @property
    def ending(self) -> str:
        """The server that flettner stops or retires now; empty: none."""
        return self.awaited.server.name if isinstance(self.awaited, Retire) else self.stopping
