"""What trimtab counts of its own work, in memory, for /metrics."""

from bisect import bisect_left
from dataclasses import dataclass, field

QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # s, of work inside the process
SLOW = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0)  # s, of what is asked of the world


@dataclass(slots=True)
class DurationHistogram:
    """`counts[i]`: of those in (edges[i-1], edges[i]]; the last one: above all edges."""

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
    """Of one target. Times `..._at` are the event loop's, in seconds; None: not yet."""

    tick: DurationHistogram = field(default_factory=DurationHistogram)
    step: DurationHistogram = field(default_factory=DurationHistogram)
    append: DurationHistogram = field(default_factory=DurationHistogram)
    lag: DurationHistogram = field(default_factory=lambda: DurationHistogram(SLOW))  # how late ticks were
    effects: dict[str, DurationHistogram] = field(default_factory=dict)  # by kind
    failures: dict[str, int] = field(default_factory=dict)  # by kind of effect
    renewals: int = 0  # of leases
    unrenewed: int = 0  # renewals that failed
    renewed_at: float | None = None
    stepped_at: float | None = None
    heard_at: dict[tuple[str, str], float] = field(default_factory=dict)  # by kind of sample, and server
    lost: dict[str, int] = field(default_factory=dict)  # by source, how often it was lost

    def performed(self, kind: str, seconds: float, *, failed: bool) -> None:
        self.effects.setdefault(kind, DurationHistogram(SLOW)).observe(seconds)
        self.failures[kind] = self.failures.get(kind, 0) + failed

    def renewed(self, at: float, *, failed: bool) -> None:
        self.renewals += not failed
        self.unrenewed += failed
        self.renewed_at = self.renewed_at if failed else at

    def forget(self, server: str) -> None:
        """Of a retired server no sample is awaited any more."""
        self.heard_at = {of: at for of, at in self.heard_at.items() if of[1] != server}
