"""Additive counts of a server's requests by outcome and latency: the judge's evidence."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from operator import add
from typing import Final, Literal, NamedTuple

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Request

EDGES_S: tuple[float, ...] = tuple(round(0.001 * 2 ** (i / 4), 6) for i in range(4 * 20 + 1))
"""Log-spaced, 1 ms to 1,049 s, four to the octave: a quantile is accurate to 19 %."""

EMPTY: tuple[int, ...] = (0,) * (len(EDGES_S) + 1)
NO_SLO = Slo()
RequestSource = Literal["proxy", "access_log", "engine"]
"""Who counts requests: the proxy, each attempt while it runs and with its tokens; the access log of a
gateway, each request when it has ended; vLLM, in histograms."""
UNAUTHORIZED = frozenset({401, 403})
"""Statuses of callers without a right, who are no clients: they do not count, anybody can send them."""


CLIENT_BUCKETS: Final = 64


class ClientBucket(NamedTuple):
    """One of CLIENT_BUCKETS: all requests of a client are in the same one.

    `pinned`: those with a session, whose server the client has chosen; chance chose that of the others.
    """

    number: int
    pinned: bool


class TokenPace(NamedTuple):
    """Requests whose tokens were counted; sums of 1000 ln(ITL / 1 ms) in whole numbers, and of its square."""

    requests: int = 0
    logs: int = 0
    squares: int = 0

    @property
    def mean(self) -> float:
        """Of ln(ITL / 1 ms)."""
        return self.logs / self.requests / 1000

    @property
    def variance(self) -> float:
        return max(0.0, self.squares / self.requests / 1e6 - self.mean**2)

    def plus(self, other: "TokenPace") -> "TokenPace":
        return TokenPace(self.requests + other.requests, self.logs + other.logs, self.squares + other.squares)


NO_PACE: Final = TokenPace()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Counts of attempts at one server. The latency tuples count by EDGES_S, the last is above all edges."""

    total: int = 0  # answered or failed; without refused and abandoned requests
    errors: int = 0  # failed, truncated or aborted
    stalled: int = 0  # no first byte for far longer than promised; slow, not failed. Not part of `total`
    queued: int = 0  # of the stalled: in the queue of a server that makes progress
    stalled_ended: int = 0  # of `total`: counted as stalled before
    stalled_failed: int = 0  # of `errors`: counted as stalled before
    late: int = 0
    """Answered without error, but outside the SLO's latencies; without requests that had stalled."""
    gave_up: int = 0
    refused: int = 0  # answered 400 to 499, but for UNAUTHORIZED
    unreached: int = 0  # of the errors: no connection, or reset before the first byte of an answer
    over_ttft: int = 0  # of those counted in `ttft`, above the objective's `under_s`; 0 without an objective
    over_itl: int = 0
    over_e2e: int = 0
    ttft: tuple[int, ...] = EMPTY
    itl: tuple[int, ...] = EMPTY
    e2e: tuple[int, ...] = EMPTY
    pace: TokenPace = NO_PACE  # exact, where `itl` has buckets

    @property
    def asked(self) -> int:
        """All attempts, whatever their outcome, each once."""
        return self.served + self.refused + self.gave_up

    @property
    def served(self) -> int:
        """Attempts that were answered, failed or stalled, each once: at the first of these."""
        return self.total + self.stalled - self.stalled_ended

    @property
    def missed(self) -> int:
        """Those of `served` that failed, stalled or were late."""
        return self.errors - self.stalled_failed + self.stalled + self.late

    def __add__(self, other: "RequestCounts") -> "RequestCounts":
        if other is NO_REQUESTS:
            return self
        if self is NO_REQUESTS:
            return other
        return RequestCounts(
            total=self.total + other.total,
            errors=self.errors + other.errors,
            stalled=self.stalled + other.stalled,
            queued=self.queued + other.queued,
            stalled_ended=self.stalled_ended + other.stalled_ended,
            stalled_failed=self.stalled_failed + other.stalled_failed,
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
            pace=self.pace.plus(other.pace),
        )


NO_REQUESTS: Final = RequestCounts()
"""The counts of most servers in most seconds."""


def _add(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    if right is EMPTY:
        return left
    return right if left is EMPTY else tuple(map(add, left, right))


def token_gap_s(request: Request) -> float | None:
    """Mean seconds between the tokens of one request; None where the proxy could not count them."""
    if request.ttft_s is None or not request.tokens or request.tokens <= 1:
        return None
    return (request.duration_s - request.ttft_s) / (request.tokens - 1)


def meets_slo(request: Request, slo: Slo) -> bool:
    """Whether a request met the SLO; latencies that the proxy could not measure are ignored."""
    if request.outcome != "ok" or request.stalled:
        return False
    measured = ((slo.ttft, request.ttft_s), (slo.itl, token_gap_s(request)), (slo.e2e, request.duration_s))
    return not any(_above(objective, value_s) for objective, value_s in measured)


def _above(objective: Objective | None, value_s: float | None) -> bool:
    return objective is not None and value_s is not None and value_s > objective.under_s


def count_requests(requests: Iterable[Request], slo: Slo = NO_SLO, *, waiting: int = 0) -> RequestCounts:
    """Count requests of one server. A stalled one counts in `ttft` above its age so far.

    `waiting`: requests in the server's queue if it makes progress, else 0; the largest number of stalled
    requests that count as `queued`.
    """
    total = errors = stalled = stalled_ended = stalled_failed = late = gave_up = refused = unreached = 0
    over_ttft = over_itl = over_e2e = 0
    ttft, itl, e2e, gaps = list(EMPTY), list(EMPTY), list(EMPTY), []
    for request in requests:
        outcome, before = request.outcome, request.stalled
        if outcome == "gave_up":
            gave_up += not before
            continue
        if outcome == "refused":  # neither an answer nor a latency
            refused += not before and request.status not in UNAUTHORIZED
            continue
        first_s = request.duration_s if outcome == "stalled" else request.ttft_s
        late_first = _above(slo.ttft, first_s)
        if first_s is not None and not before:
            ttft[bisect_left(EDGES_S, first_s)] += 1
            over_ttft += late_first
        if outcome == "stalled":
            stalled += 1
            continue
        total += 1
        stalled_ended += before
        if outcome != "ok":
            errors += 1
            stalled_failed += before
            unreached += outcome == "failed" and request.status == 0
            continue
        e2e[bisect_left(EDGES_S, request.duration_s)] += 1
        if (gap := token_gap_s(request)) is not None:
            itl[bisect_left(EDGES_S, gap)] += 1
            gaps.append(round(1000 * log(max(gap / EDGES_S[0], 1.0))))
        late_gaps, late_end = _above(slo.itl, gap), _above(slo.e2e, request.duration_s)
        over_itl += late_gaps
        over_e2e += late_end
        late += not before and (late_first or late_gaps or late_end)
    return RequestCounts(
        total=total,
        errors=errors,
        stalled=stalled,
        queued=min(stalled, waiting),
        stalled_ended=stalled_ended,
        stalled_failed=stalled_failed,
        late=late,
        gave_up=gave_up,
        refused=refused,
        unreached=unreached,
        over_ttft=over_ttft,
        over_itl=over_itl,
        over_e2e=over_e2e,
        ttft=tuple(ttft),
        itl=tuple(itl),
        e2e=tuple(e2e),
        pace=TokenPace(len(gaps), sum(gaps), sum(gap * gap for gap in gaps)),
    )


def count_above(counts: tuple[int, ...], edge_s: float) -> tuple[int, int]:
    """(count above `edge_s`, total count); the edge is rounded up to the next of EDGES_S."""
    return sum(counts[bisect_left(EDGES_S, edge_s) + 1 :]), sum(counts)


def quantile(counts: tuple[int, ...], share: float) -> float | None:
    """The upper edge, in seconds, of the bucket that holds the quantile; None without counts."""
    wanted = share * sum(counts)
    seen = 0
    for edge_s, count in zip((*EDGES_S, EDGES_S[-1] * 2), counts, strict=True):
        seen += count
        if count and seen >= wanted:
            return edge_s
    return None
