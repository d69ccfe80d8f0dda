"""Section `buckets`: a promised latency inside a bucket of vLLM's histogram, by ways to count what is late.

Log-normal latencies; one stream with an objective of 95 %; ticks of 20 requests of green and 60 of blue.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import log
from random import Random

from bench.judge.ours import SURE, Evidence, independent
from bench.judge.runs import Pool, Row
from bench.judge.traffic import Tick, seeded
from flettner.agent.domain.reading import Buckets
from flettner.agent.observe.engine_counts import count_over

PASSED = log(20.0)
SIGMA = 0.5
TOLERANCE = 0.025  # half of the 5 % that may be late
TICKS, OF, SERVERS = 120, 20, 3
SHARE = 0.02  # of the requested runs


@dataclass(frozen=True, slots=True)
class Limit:
    """In seconds: the promise, the edges of its bucket, and blue's median."""

    limit_s: float
    low_s: float
    high_s: float
    median_s: float

    def over(self, way: str, latencies: list[float]) -> float:
        """Return the late requests."""
        edge_s = {"exact": self.limit_s, "lower edge": self.low_s, "upper edge": self.high_s}.get(way)
        if edge_s is not None:
            return sum(latency > edge_s for latency in latencies)
        below = sum(latency <= self.low_s for latency in latencies)
        above = sum(latency > self.high_s for latency in latencies)
        counts = (float(below), float(len(latencies) - below - above), float(above))
        return count_over(Buckets((self.low_s, self.high_s), counts, 0.0), self.limit_s)


WAYS = ("exact", "lower edge", "upper edge", "fixed part")
LIMITS: Mapping[str, Limit] = {
    "0.6 s in 0.5 to 0.75 s, blue 0.55 s": Limit(0.6, 0.5, 0.75, 0.55),
    "1.1 s in 1 to 2.5 s, blue 0.5 s": Limit(1.1, 1.0, 2.5, 0.5),
    "2 s in 1 to 2.5 s, blue 1.2 s": Limit(2.0, 1.0, 2.5, 1.2),
}
SLOWER = (1.0, 1.25, 1.5)


def judged(name: str, slower: float, way: str, run: int) -> str:
    """Return "back", "passed" or "open"."""
    limit, random = LIMITS[name], seeded("buckets", name, slower, way, run)
    count = _counter(limit, way)
    many = [random.lognormvariate(log(limit.median_s), SIGMA) for _ in range(20_000)]
    evidence = Evidence(independent(), usual=limit.over(way, many) / len(many))
    evidence.stream = replace(evidence.stream, tolerance=max(evidence.stream.tolerance, TOLERANCE))
    passed = False
    for _ in range(TICKS):
        if evidence.update(_tick(limit, slower, count, random)) >= SURE:
            return "back"
        passed |= evidence.log_not_worse >= PASSED
    return "passed" if passed else "open"


def _counter(limit: Limit, way: str) -> Callable[[str, list[float]], int]:
    """Count whole requests; the rest of one waits for the server's next tick."""
    rest: dict[str, float] = {}

    def count(server: str, latencies: list[float]) -> int:
        late = rest.get(server, 0.0) + limit.over(way, latencies)
        rest[server] = late - int(late + 1e-6)
        return int(late + 1e-6)

    return count


def _tick(limit: Limit, slower: float, count: Callable[[str, list[float]], int], random: Random) -> Tick:
    def late(server: str, median_s: float) -> tuple[int, int]:
        return OF, count(server, [random.lognormvariate(log(median_s), SIGMA) for _ in range(OF)])

    blue = tuple(late(str(number), limit.median_s) for number in range(SERVERS))
    return late("green", slower * limit.median_s), blue


def measure(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    for name, slower in product(LIMITS, SLOWER):
        row: Row = {}
        for way in WAYS:
            ended = pool.of(partial(judged, name, slower, way), max(20, round(SHARE * runs)))
            row[way] = {how: ended.count(how) for how in ("back", "passed", "open")}
        yield f"{name}, green {slower:g} times slower", row
