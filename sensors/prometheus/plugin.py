"""Asks a Prometheus for what only it has (DCGM, node metrics, history): named PromQL results, none stale."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.domain.errors import SensorError
from agent.domain.ports import Now, View
from agent.domain.reading import Sample, SeriesSample, SourceState
from agent.plugins.option_errors import check_periods

if TYPE_CHECKING:
    from sensors.prometheus.promql import Connection, QueryResult


@dataclass(frozen=True, slots=True)
class Prometheus:
    """`queries`: name to PromQL; each must answer with one number, a scalar or a single series.

    None, and never an old value, is given for NaN, for no series, and when a sample that the expression reads
    now is older than `stale_after_s` (which must be more than the scrape interval). The age is that of the
    selectors in the expression. It cannot be seen through a recording rule, a federation or a push gateway,
    whose samples are as young as their last copy; nor inside a window, which holds what it spans.

    A restart resets counters: rate() and increase() see that, but not what was counted before the first
    scrape, and a window that begins before the restart mixes two processes. Leave such windows out:

        sum(rate(vllm:generation_tokens_total{job="chat"}[30s])
            and on (instance) (time() - process_start_time_seconds{job="chat"} > 45))
        max(DCGM_FI_DEV_GPU_UTIL{Hostname="gpu1"}) / 100
        histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{job="chat"}[1m])))
    """

    url: str
    queries: Mapping[str, str] = field(default_factory=dict)
    every_s: float = 5.0
    stale_after_s: float = 5.0
    timeout_s: float = 3.0

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

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:  # noqa: ARG002  one server
        connection = await asyncio.to_thread(self._connection)
        sources = _Sources(emit, now)
        clock = asyncio.get_running_loop().time
        try:
            while True:
                due_s = clock() + self.every_s
                answers = await self._answers(connection, sources)
                values = {name: answers[name].value if name in answers else None for name in self.queries}
                emit(SeriesSample(at=now(), values=values))
                await asyncio.sleep(due_s - clock())
        finally:
            connection.close()

    def _connection(self) -> "Connection":
        from sensors.prometheus.promql import Connection  # noqa: PLC0415  costs memory in every daemon that has no Prometheus

        return Connection(self.url.rstrip("/"), self.timeout_s)

    async def _answers(self, connection: "Connection", sources: "_Sources") -> Mapping[str, "QueryResult"]:
        """By query; empty when the server is lost. Only one thread at a time, however long it takes."""
        asked = asyncio.create_task(asyncio.to_thread(connection.ask, self.queries, self.stale_after_s))
        patience_s = self.timeout_s * 4 * len(self.queries)  # two requests each, to connect and to read
        try:
            await asyncio.wait({asked}, timeout=patience_s)
            if not asked.done():
                sources.say("prometheus", f"{self.url} has not finished its answers after {patience_s:g} s")
            answers = await asked
        except SensorError as error:
            sources.say("prometheus", str(error))
            return {}
        finally:
            asked.cancel()
        sources.say("prometheus", "")
        for name, answer in answers.items():
            sources.say(f"prometheus {name}", answer.why)
        return answers


class _Sources:
    """Says each change of the server and of each query, once."""

    def __init__(self, emit: Callable[[Sample], None], now: Now) -> None:
        self._emit = emit
        self._now = now
        self._lost: set[str] = set()

    def say(self, source: str, why: str) -> None:
        """`why` it is lost; empty: it is there."""
        if bool(why) == (source in self._lost):
            return
        self._lost ^= {source}
        self._emit(SourceState(at=self._now(), source=source, available=not why, why=why))


plugin = Prometheus
