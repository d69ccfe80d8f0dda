"""The options of a proxy that holds new requests while no server serves."""

from dataclasses import dataclass

from flettner.agent.domain.model import Hold


@dataclass(frozen=True, kw_only=True)
class HoldOptions:
    """Raises ValueError for values that cannot work."""

    # half of the 60 s of silence after which load balancers cut a request (nginx proxy_read_timeout, AWS ALB)
    hold_s: float = 30.0  # a request waits at most so long while no server serves; 0: it is refused at once
    hold_requests: int = 512  # at most so many begin to wait in each hold_s; each takes up to 1.6 MiB

    def __post_init__(self) -> None:
        if not 0 <= self.hold_s <= LONGEST_S or 0 < self.hold_s < SHORTEST_S:
            raise ValueError(f"hold_s is 0 or {SHORTEST_S:g} to {LONGEST_S:g}, not {self.hold_s}")
        if self.hold_requests < 1:
            raise ValueError(f"hold_requests must be at least 1, not {self.hold_requests}")

    @property
    def hold(self) -> Hold | None:
        return Hold(wait_s=self.hold_s, requests=self.hold_requests) if self.hold_s else None


SHORTEST_S = 1.0
LONGEST_S = 3600.0  # the proxy ends a request that is silent for longer
