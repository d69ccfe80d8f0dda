"""Rate limits for each caller: requests per second and concurrent requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flettner.agent.api.problems import RequestRefusedError

PER_S = 50.0
BURST = 250.0
PIECE = 64 * 1024  # bytes of a response that count as another request
AT_ONCE = 16  # including streams, so that one token cannot take all of them
STRANGERS_AT_ONCE = 128  # requests that wait, of all who are not known: half of the connections
CALLERS = 1024  # remembered; after BURST / PER_S idle seconds a caller has its full burst again


@dataclass(slots=True)
class RateLimits:
    """A token bucket for each caller (RFC 2697's idea), and a count of the requests that are open."""

    now: Callable[[], float]  # monotonic s
    per_s: float = PER_S
    burst: float = BURST
    at_once: int = AT_ONCE
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # (requests left, when)
    _open: dict[str, int] = field(default_factory=dict)

    def spend(self, caller: str) -> None:
        """Raises RequestRefusedError (429) with Retry-After."""
        at = self.now()
        left = self._refilled(caller, at)
        wait_s = max(0.0, 1.0 - left) / self.per_s
        self._left[caller] = (left if wait_s else left - 1.0, at)
        if len(self._left) > CALLERS:
            del self._left[next(iter(self._left))]  # the longest idle caller
        if wait_s:
            raise self._too_fast(wait_s)

    def check(self, caller: str) -> None:
        """Raise as `spend` would, and take nothing."""
        if caller in self._left:
            at = self.now()
            self._left[caller] = left, _ = self._refilled(caller, at), at
            if left < 1.0:
                raise self._too_fast((1.0 - left) / self.per_s)

    def charge(self, caller: str, size: int) -> float:
        """Charge the caller for `size` bytes, or pay them back; returns the delay for its next request, s."""
        if caller not in self._left:
            return 0.0
        at = self.now()
        left = min(self.burst, self._refilled(caller, at) - size // PIECE)
        self._left[caller] = (left, at)
        return max(0.0, -left) / self.per_s

    def _too_fast(self, wait_s: float) -> RequestRefusedError:
        return _too_many(f"More than {self.per_s:g} requests a second; try again later.", wait_s)

    def _refilled(self, caller: str, at: float) -> float:
        left, since = self._left.pop(caller, (self.burst, at))
        return min(self.burst, left + (at - since) * self.per_s)

    @contextmanager
    def turn(self, caller: str) -> Iterator[None]:
        """While one of its requests is open. Raises RequestRefusedError (429)."""
        if self._open.get(caller, 0) >= self.at_once:
            raise _too_many(f"{self.at_once} requests of this caller are open; close one first.", 1.0)
        self._open[caller] = self._open.get(caller, 0) + 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


def _too_many(detail: str, wait_s: float) -> RequestRefusedError:
    return RequestRefusedError(
        429, detail, kind="too-many-requests", headers={"Retry-After": str(int(wait_s) + 1)}
    )
