"""What a server's requests did, as counts that add up: the judge's evidence."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from agent.model import Objective, Slo
from agent.reading import Request

EDGES_S: tuple[float, ...] = tuple(round(0.001 * 2 ** (i / 4), 6) for i in range(4 * 20 + 1))
"""Log-spaced, 1 ms to 1,049 s, four to the octave: a quantile is read to within 19 %."""

EMPTY: tuple[int, ...] = (0,) * (len(EDGES_S) + 1)
NO_SLO = Slo()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Counts of attempts at one server. The latency tuples count by EDGES_S, the last is above all edges."""

    total: int = 0  # answered or failed; without those refused or whose client gave up
    errors: int = 0  # failed, truncated, aborted or stalled
    late: int = 0  # answered well, but not within what the SLO promises
    gave_up: int = 0
    refused: int = 0  # answered 400 to 499
    unreached: int = 0  # of the errors: no connection, or reset before the first byte of an answer
    over_ttft: int = 0  # of those counted in `ttft`, above the objective's `under_s`; 0 without an objective
    over_itl: int = 0
    over_e2e: int = 0
    ttft: tuple[int, ...] = EMPTY
    itl: tuple[int, ...] = EMPTY
    e2e: tuple[int, ...] = EMPTY

    @property
    def asked(self) -> int:
        """All attempts, whatever became of them."""
        return self.total + self.refused + self.gave_up

    def __add__(self, other: "Arm") -> "Arm":
        return Arm(
            total=self.total + other.total,
            errors=self.errors + other.errors,
            late=self.late + other.late,
            gave_up=self.gave_up + other.gave_up,
            refused=self.refused + other.refused,
            unreached=self.unreached + other.unreached,
            over_ttft=self.over_ttft + other.over_ttft,
            over_itl=self.over_itl + other.over_itl,
            over_e2e=self.over_e2e + other.over_e2e,
            ttft=_add(self.ttft, other.ttft),
            itl=_add(self.itl, other.itl),
            e2e=_add(self.e2e, other.e2e),
        )


def _add(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def gap_s(request: Request) -> float | None:
    """Mean seconds between the tokens of one request; None where the proxy could not count them."""
    if request.ttft_s is None or not request.tokens or request.tokens <= 1:
        return None
    return (request.duration_s - request.ttft_s) / (request.tokens - 1)


def met(request: Request, slo: Slo) -> bool:
    """An objective that the proxy could not measure for this request does not count against it."""
    if request.outcome != "ok":
        return False
    measured = ((slo.ttft, request.ttft_s), (slo.itl, gap_s(request)), (slo.e2e, request.duration_s))
    return not any(_above(objective, value_s) for objective, value_s in measured)


def _above(objective: Objective | None, value_s: float | None) -> bool:
    return objective is not None and value_s is not None and value_s > objective.under_s


def _first_s(request: Request) -> float | None:
    return request.duration_s if request.outcome == "stalled" else request.ttft_s


def arm_of(requests: Iterable[Request], slo: Slo = NO_SLO) -> Arm:
    """Count requests of one server. A stalled one counts in `ttft` above its age so far."""
    asked = list(requests)
    counted = [request for request in asked if request.outcome not in ("gave_up", "refused")]
    ok = [request for request in counted if request.outcome == "ok"]
    firsts, gaps = _known(map(_first_s, counted)), _known(map(gap_s, ok))
    whole = [request.duration_s for request in ok]
    return Arm(
        total=len(counted),
        errors=len(counted) - len(ok),
        late=sum(not met(request, slo) for request in ok),
        gave_up=sum(request.outcome == "gave_up" for request in asked),
        refused=sum(request.outcome == "refused" for request in asked),
        unreached=sum(request.outcome == "failed" and request.status == 0 for request in counted),
        over_ttft=sum(_above(slo.ttft, value_s) for value_s in firsts),
        over_itl=sum(_above(slo.itl, value_s) for value_s in gaps),
        over_e2e=sum(_above(slo.e2e, value_s) for value_s in whole),
        ttft=_spread(firsts),
        itl=_spread(gaps),
        e2e=_spread(whole),
    )


def _known(values_s: Iterable[float | None]) -> list[float]:
    return [value_s for value_s in values_s if value_s is not None]


def _spread(values_s: Iterable[float]) -> tuple[int, ...]:
    counts = list(EMPTY)
    for value_s in values_s:
        counts[bisect_left(EDGES_S, value_s)] += 1
    return tuple(counts)


def over(counts: tuple[int, ...], edge_s: float) -> tuple[int, int]:
    """(how many lie above `edge_s`, how many in all); the edge is rounded up to the next of EDGES_S."""
    return sum(counts[bisect_left(EDGES_S, edge_s) + 1 :]), sum(counts)


def quantile(counts: tuple[int, ...], share: float) -> float | None:
    """The upper edge, in seconds, of the bucket that holds the quantile; None when there are no counts."""
    wanted = share * sum(counts)
    seen = 0
    for edge_s, count in zip((*EDGES_S, EDGES_S[-1] * 2), counts, strict=True):
        seen += count
        if count and seen >= wanted:
            return edge_s
    return None
