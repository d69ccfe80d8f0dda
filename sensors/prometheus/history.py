"""The last hours of a target as rows for charts, from the metrics of vLLM that a Prometheus has scraped."""

import re
from collections.abc import Iterable, Mapping

from flettner.agent.observe.minute_rows import MINUTE_S, MinuteRow, build_row
from flettner.vllm_facts.metrics.names import COUNTERS, GAUGES, HISTOGRAMS

WINDOW = "2m"  # of a rate: two samples or more, with scrape intervals up to a minute


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
