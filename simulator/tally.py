"""The records of the traffic: each sent request exactly once."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flettner.primitives.quantiles import quantile

LoadOutcome = Literal["ok", "failed", "truncated", "aborted"]
LoadMetric = Literal["ttft_s", "itl_s", "e2e_s"]
OUTCOMES: tuple[LoadOutcome, ...] = ("ok", "failed", "truncated", "aborted")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, in the sender's clock.

    failed: no connection, not 200, or an error in the stream. truncated: 200 that ends without finish_reason
    or `[DONE]`. aborted: finish_reason abort.
    """

    at: float  # sent
    ended: float
    outcome: LoadOutcome
    session: str = ""
    tokens: int = 0
    ttft_s: float | None = None
    itl_s: float | None = None  # mean gap between its tokens; None below two
    why: str = ""

    @property
    def e2e_s(self) -> float:
        return self.ended - self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSlo:
    """A request is good if it is ok and within these limits; None is no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    def met_by(self, record: RequestRecord) -> bool:
        if record.outcome != "ok":
            return False
        limits = ((self.ttft_s, record.ttft_s), (self.itl_s, record.itl_s), (self.e2e_s, record.e2e_s))
        return all(limit is None or value is None or value <= limit for limit, value in limits)


class TrafficSummary:
    """Counts requests as they start and end. `sent` always equals ended plus in flight."""

    def __init__(self) -> None:
        self.sent = 0
        self.in_flight = 0
        self.outcomes: Counter[LoadOutcome] = Counter()
        self.records: list[RequestRecord] = []  # in order of their end
        self.on_close: Callable[[RequestRecord], None] = lambda _: None  # called with each closed record

    def opened(self) -> None:
        self.sent += 1
        self.in_flight += 1

    def closed(self, record: RequestRecord) -> None:
        self.in_flight -= 1
        self.outcomes[record.outcome] += 1
        self.records.append(record)
        self.on_close(record)

    def counts(self) -> dict[str, int]:
        """Return the number of sent requests, and of each outcome."""
        return {"sent": self.sent, **{outcome: self.outcomes[outcome] for outcome in OUTCOMES}}

    def between(self, since: float, until: float) -> Sequence[RequestRecord]:
        """Return the requests that ended in [since, until)."""
        first = bisect_left(self.records, since, key=_ended)
        return self.records[first : bisect_left(self.records, until, key=_ended)]

    def quantile(
        self, metric: LoadMetric, share: float, since: float = 0.0, until: float = float("inf")
    ) -> float | None:
        """Return the quantile of the ok requests that ended in the span; None without any."""
        value: Callable[[RequestRecord], float | None] = lambda record: getattr(record, metric)  # noqa: E731
        seen = [value(record) for record in self.between(since, until) if record.outcome == "ok"]
        numbers = sorted(number for number in seen if number is not None)
        return quantile(numbers, share) if numbers else None

    def goodput(self, slo: LoadSlo, since: float, until: float) -> float:
        """Return the requests per second that ended in the span and met the SLO."""
        if until <= since:
            return 0.0
        return sum(map(slo.met_by, self.between(since, until))) / (until - since)

    def summary(self, since: float, until: float, slo: LoadSlo | None = None) -> dict[str, Any]:
        """Return a summary of the span for text or JSON; times in milliseconds."""
        about: dict[str, Any] = {"requests": self.counts(), "in_flight": self.in_flight}
        about["seconds"] = round(until - since, 3)
        for metric in ("ttft_s", "itl_s", "e2e_s"):
            for share in (0.5, 0.95, 0.99):
                seconds = self.quantile(metric, share, since, until)
                key = f"{metric[:-2]}_p{round(share * 100)}_ms"
                about[key] = None if seconds is None else round(seconds * 1000, 1)
        span = self.between(since, until)
        about["tokens_per_s"] = round(sum(record.tokens for record in span) / max(until - since, 1e-9), 1)
        if slo is not None:
            about["slo"] = asdict(slo)
            about["goodput_rps"] = round(self.goodput(slo, since, until), 3)
        about["why"] = dict(Counter(record.why for record in span if record.why).most_common(5))
        return about


def _ended(record: RequestRecord) -> float:
    return record.ended
