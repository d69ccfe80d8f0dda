"""In-memory counters and histograms of the daemon's own work, for /metrics."""

from bisect import bisect_left
from dataclasses import dataclass, field

QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # s, for work inside the process
LATE = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)  # s, for what is due each second
SLOW = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0)  # s, for effects on the outside world


@dataclass(slots=True)
class DurationHistogram:
    """`counts[i]`: observations in (edges[i-1], edges[i]]; the last count: above all edges."""

    edges: tuple[float, ...] = QUICK
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.edges) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value


@dataclass(slots=True, kw_only=True)
class SelfMetrics:
    """Metrics of one target. Times `..._at` are event loop time in seconds; None: not yet."""

    tick: DurationHistogram = field(default_factory=DurationHistogram)
    step: DurationHistogram = field(default_factory=DurationHistogram)
    append: DurationHistogram = field(default_factory=DurationHistogram)
    lag: DurationHistogram = field(default_factory=lambda: DurationHistogram(LATE))  # delay of the ticks
    effects: dict[str, DurationHistogram] = field(default_factory=dict)  # by kind
    failures: dict[str, int] = field(default_factory=dict)  # by kind of effect
    renewals: int = 0  # of leases
    unrenewed: int = 0  # failed renewals
    renewed_at: float | None = None
    stepped_at: float | None = None
    received_at: dict[tuple[str, str], float] = field(default_factory=dict)  # by sample type and server
    lost: dict[str, int] = field(default_factory=dict)  # number of losses by source

    def count_effect(self, kind: str, seconds: float, *, failed: bool) -> None:
        self.effects.setdefault(kind, DurationHistogram(SLOW)).observe(seconds)
        self.failures[kind] = self.failures.get(kind, 0) + failed

    def count_renewal(self, at: float, *, failed: bool) -> None:
        self.renewals += not failed
        self.unrenewed += failed
        self.renewed_at = self.renewed_at if failed else at

    def forget(self, server: str) -> None:
        """Drop the sample times of a retired server."""
        self.received_at = {key: at for key, at in self.received_at.items() if key[1] != server}
