"""A traffic split as requested, and as read back from the proxy's configuration."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flettner.agent.domain.effects import Route

Json = dict[str, Any]

NAMESPACE = "flettner"  # of the Lua filter, and so of the route metadata that it reads
LONGEST_LEASE_S = 60.0  # a wrong clock must not hold a lease for longer


def shared_clock_ms() -> int:
    """The wall clock that Envoy reads too: one process writes a lease, another one spends it."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedWeights:
    """The split as written, before an expired lease changes it."""

    epoch: int
    number: int
    weights: Mapping[str, int]
    fallback: str
    leased: str | None
    lease_ms: int
    lease_expires_ms: int
    closed_s: float

    def is_of(self, route: Route) -> bool:
        asked = (route.number, dict(route.weights), route.fallback, route.leased, route.closed_s)
        return asked == (self.number, self.weights, self.fallback, self.leased, self.closed_s)

    def is_due(self) -> bool:
        """True if a third of the lease is spent, or the clock was set back."""
        left_ms = self.lease_expires_ms - shared_clock_ms()
        return self.leased is not None and not self.lease_ms * 2 / 3 < left_ms <= self.lease_ms


def metadata_of(route: Route, *, epoch: int) -> Json:
    """Metadata of the route itself, so that split, lease and epoch come from the same write."""
    metadata: Json = {
        "epoch": epoch,
        "number": route.number,
        "weights": dict(route.weights),
        "fallback": route.fallback,
    }
    if route.leased:
        lease_ms = int(min(route.lease_s, LONGEST_LEASE_S) * 1000)
        expires_ms = shared_clock_ms() + lease_ms
        metadata.update(leased=route.leased, lease_ms=lease_ms, lease_expires_ms=expires_ms)
    if route.closed_s:
        metadata.update(closed_s=route.closed_s, retry_after=str(math.ceil(route.closed_s)))
    return metadata


def spend_lease(configuration: Json) -> Json:
    """The same RouteConfiguration with a lease that expired long ago."""
    spent: Json = json.loads(json.dumps(configuration))
    for route in spent["virtual_hosts"][0]["routes"]:
        metadata = route.get("metadata", {}).get("filter_metadata", {}).get(NAMESPACE, {})
        if "lease_expires_ms" in metadata:
            metadata["lease_expires_ms"] = 0
    return spent


def carried_by(resources: Iterable[Json]) -> CarriedWeights:
    """Read a RouteConfiguration of flettner back. Raises ValueError on any other."""
    try:
        (configuration,) = resources
        (split,) = (
            route for route in configuration["virtual_hosts"][0]["routes"] if route["name"] == "split"
        )
        metadata = split["metadata"]["filter_metadata"][NAMESPACE]
        return CarriedWeights(
            epoch=int(metadata["epoch"]),
            number=int(metadata["number"]),
            weights={str(name): int(weight) for name, weight in metadata["weights"].items()},
            fallback=str(metadata["fallback"]),
            leased=metadata.get("leased"),
            lease_ms=int(metadata.get("lease_ms", 0)),
            lease_expires_ms=int(metadata.get("lease_expires_ms", 0)),
            closed_s=float(metadata.get("closed_s", 0)),
        )
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a route configuration of ours: {error!r}") from error
