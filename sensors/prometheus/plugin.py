"""Queries Prometheus for named PromQL results, drops stale results, and loads the history of the charts."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.headroom import HOUR_S
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import Sample, SeriesSample
from flettner.agent.observe.minute_rows import MINUTE_S, MinuteRow, build_row
from flettner.agent.plugins.option_errors import check_periods
from flettner.sensors.shared.source_reporter import SourceReporter
from flettner.vllm_facts.metrics.names import COUNTERS, GAUGES, HISTOGRAMS

if TYPE_CHECKING:
    from flettner.sensors.prometheus.promql import Connection, QueryResult

MOST_HOURS = 24  # that a chart shows
WINDOW = "2m"  # of a rate: two samples or more, with scrape intervals up to a minute


@dataclass(frozen=True, slots=True)
class Prometheus:
    """`queries`: name to PromQL; each result must be one number, a scalar or a single series.

    The value is None for NaN, for no series, and if a sample that the expression reads is older than
    `stale_after_s`, which must exceed the scrape interval, or is from the future: an answer may be ahead of
    this host's clock by 5 s. The age is that of the selectors in the
    expression. It is not visible through a recording rule, a federation or a push gateway, whose samples are
    as young as their last copy, nor inside a range.

    A restart resets counters. rate() and increase() handle this, but miss counts before the first scrape, and
    a range that starts before the restart mixes two processes. Exclude such ranges:

        sum(rate(vllm:generation_tokens_total{job="chat"}[30s])
            and on (instance) (time() - process_start_time_seconds{job="chat"} > 45))
        max(DCGM_FI_DEV_GPU_UTIL{Hostname="gpu1"}) / 100
        histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{job="chat"}[1m])))

    At its start the daemon loads what its charts lack of the last `history_hours` (0: nothing) from vLLM's
    own metrics, and the busiest minutes of the last week. `history_selector` are the label matchers of the
    target's servers, such as `job="chat"`; empty: the label `instance` is the address of a server that runs.
    """

    url: str
    queries: Mapping[str, str] = field(default_factory=dict)
    every_s: float = 5.0
    stale_after_s: float = 5.0
    timeout_s: float = 3.0
    history_hours: float = 6.0
    history_selector: str = ""

    def __post_init__(self) -> None:
        url: object = self.url
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ValueError(f"url must start with http:// or https://, not {url!r}")
        queries: Mapping[str, object] = dict(self.queries)
        if not queries:
            raise ValueError('queries must name at least one, such as gpu = "max(DCGM_FI_DEV_GPU_UTIL)"')
        for name, promql in queries.items():
            if not isinstance(promql, str) or not promql.strip():
                raise ValueError(f"queries.{name} must be PromQL, not {promql!r}")
        check_periods(self, "every_s", "stale_after_s", "timeout_s")
        selector: object = self.history_selector
        if not isinstance(selector, str):
            raise TypeError(f"history_selector must be PromQL's label matchers, not {selector!r}")
        if not 0 <= self.history_hours <= MOST_HOURS:
            raise ValueError(f"history_hours must be from 0 to {MOST_HOURS}, not {self.history_hours!r}")

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:  # noqa: ARG002  one server
        connection = await asyncio.to_thread(self._connection)
        reporter = SourceReporter(emit, now)
        clock = asyncio.get_running_loop().time
        try:
            while True:
                due_s = clock() + self.every_s
                answers = await self._query(connection, reporter, now)
                values = {name: answers[name].value if name in answers else None for name in self.queries}
                emit(SeriesSample(at=now(), values=values))
                await asyncio.sleep(due_s - clock())
        finally:
            connection.close()

    async def read_history(self, servers: Sequence[Server], after: int, until: int) -> Sequence[MinuteRow]:
        """Return rows of the minutes from `after` to `until`, Unix times, s. Raises SensorError."""
        first = max(after, until - round(self.history_hours * 3600)) // MINUTE_S * MINUTE_S + MINUTE_S
        last = until // MINUTE_S * MINUTE_S
        addresses = [server.address for server in servers if server.address]
        if first > last:
            return ()
        if not self.history_selector and not addresses:
            raise SensorError("no server runs whose address could select its series: set history_selector")
        selector = self.history_selector or select_servers(addresses)
        connection = await asyncio.to_thread(self._connection)
        points = {}
        try:
            for column, promql in build_queries(selector).items():
                points[column] = await asyncio.to_thread(connection.run_range, promql, first, last, MINUTE_S)
        finally:
            connection.close()
        if not any(points.values()):
            raise SensorError(f"{self.url} has no metrics of vLLM with {selector}: set history_selector")
        return build_rows(points)

    async def read_peaks(self, servers: Sequence[Server], after: int, until: int) -> Mapping[int, float]:
        """Return requests per second of the busiest minute of each hour, by its Unix time, s.

        Nothing where `history_hours` is 0. Raises SensorError.
        """
        addresses = [server.address for server in servers if server.address]
        if not self.history_hours or not (self.history_selector or addresses):
            return {}
        rate = build_queries(self.history_selector or select_servers(addresses))["requests_rps"]
        promql = f"max_over_time(({rate})[1h:1m])"
        first, last = (at // HOUR_S * HOUR_S for at in (after + HOUR_S, until))
        connection = await asyncio.to_thread(self._connection)
        try:
            ends = await asyncio.to_thread(connection.run_range, promql, first, last, HOUR_S)
        finally:
            connection.close()
        return {at - HOUR_S: rps for at, rps in ends.items()}

    def _connection(self) -> "Connection":
        from flettner.sensors.prometheus.promql import Connection  # noqa: PLC0415  saves memory without Prometheus

        return Connection(self.url.rstrip("/"), self.timeout_s)

    async def _query(
        self, connection: "Connection", reporter: SourceReporter, now: Now
    ) -> Mapping[str, "QueryResult"]:
        """Return results by query; empty if the server is lost. At most one thread runs at a time."""
        task = asyncio.create_task(asyncio.to_thread(connection.run, self.queries, self.stale_after_s, now))
        limit_s = self.timeout_s * 4 * len(self.queries)  # two requests each, to connect and to read
        try:
            await asyncio.wait({task}, timeout=limit_s)
            if not task.done():
                why = f"{self.url} did not answer all queries in {limit_s:g} s"
                reporter.report("prometheus", available=False, why=why)
            answers = await task
        except SensorError as error:
            reporter.report("prometheus", available=False, why=str(error))
            return {}
        finally:
            task.cancel()
        reporter.report("prometheus", available=True)
        for name, answer in answers.items():
            reporter.report(f"prometheus {name}", available=not answer.why, why=answer.why)
        return answers


def select_servers(addresses: Iterable[str]) -> str:
    """Return the label matcher of these HOST:PORT, as Prometheus names a target by default."""
    return f"instance=~`{'|'.join(map(re.escape, addresses))}`"


def build_queries(matchers: str) -> Mapping[str, str]:
    """Return PromQL by column of a row. Gauges are those of the instance with the largest number.

    `matchers`: of labels, in braces of PromQL. Each name of a metric is queried if releases differ.
    """

    def query(names: Iterable[str], template: str) -> str:
        series = "{" + matchers + "}"
        return " or ".join(template.replace("NAME", name).replace("SERIES", series) for name in names)

    p95 = f"histogram_quantile(0.95, sum by (le) (rate(NAME_bucketSERIES[{WINDOW}])))"
    return {
        "requests_rps": query(HISTOGRAMS["ttft"], f"sum(rate(NAME_countSERIES[{WINDOW}]))"),
        "generated_per_s": query(COUNTERS["generation_tokens"], f"sum(rate(NAMESERIES[{WINDOW}]))"),
        "ttft_p95_s": query(HISTOGRAMS["ttft"], p95),
        "itl_p95_s": query(HISTOGRAMS["itl"], p95),
        "running": query(GAUGES["running"], "max(sum by (instance) (NAMESERIES))"),
        "waiting": query(GAUGES["waiting"], "max(sum by (instance) (NAMESERIES))"),
        "kv_usage": query(GAUGES["kv_usage"], "max(NAMESERIES)"),
        "preemptions_per_s": query(
            COUNTERS["preemptions"], f"max(sum by (instance) (rate(NAMESERIES[{WINDOW}])))"
        ),
    }


def build_rows(points: Mapping[str, Mapping[int, float]]) -> list[MinuteRow]:
    """Return the rows of the minutes that end at the points' times, by column; oldest first."""
    times = sorted({at for column in points.values() for at in column})
    rows = (
        build_row(at - MINUTE_S, {name: column.get(at) for name, column in points.items()}) for at in times
    )
    return [row for row in rows if row is not None]


plugin = Prometheus
