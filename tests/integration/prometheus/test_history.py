"""The charts of a target whose vLLM a real Prometheus has scraped for an hour before the daemon's start."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.model import Server
from flettner.agent.runtime.time_series import TimeSeries
from flettner.primitives.wall_clock import utc_now
from flettner.sensors.prometheus.plugin import Prometheus
from tests.support.prometheus_server import RealPrometheus, real_prometheus

pytestmark = pytest.mark.smoke

SCRAPE_S = 15
SCRAPES = 3600 // SCRAPE_S
PER_SCRAPE = 30  # requests: two a second
CHAT = Server(name="chat-r0", setting={}, address="127.0.0.1:8000")
STRANGER = "127.0.0.1:8001"


def page_of_the_past(now_s: int) -> str:
    """OpenMetrics with a sample of each series for each scrape: of the server, and of a stranger's."""
    kinds = {"num_requests_running": "gauge", "num_requests_waiting": "gauge", "kv_cache_usage_perc": "gauge"}
    kinds |= {"time_to_first_token_seconds": "histogram", "inter_token_latency_seconds": "histogram"}
    lines = []
    for name, kind in kinds.items():
        lines.append(f"# TYPE vllm:{name} {kind}\n")
        for instance, factor in ((CHAT.address, 1), (STRANGER, 100)):
            for scrape in range(SCRAPES):
                at_s = now_s - 3600 + scrape * SCRAPE_S
                lines += samples_of(name, f'instance="{instance}",job="vllm"', factor, scrape, at_s)
    return "".join((*lines, "# EOF\n"))


def samples_of(name: str, labels: str, factor: int, scrape: int, at_s: int) -> Iterator[str]:
    """Of histograms half the observations are below 0.1 s, the others between 0.1 and 0.3 s."""
    gauges = {
        "num_requests_running": 8 * factor,
        "num_requests_waiting": 3 * factor,
        "kv_cache_usage_perc": 0.25,
    }
    if name in gauges:
        yield f"vllm:{name}{{{labels}}} {gauges[name]} {at_s}\n"
        return
    total = scrape * PER_SCRAPE * factor
    for edge, count in (("0.1", total / 2), ("0.3", total), ("+Inf", total)):
        yield f'vllm:{name}_bucket{{{labels},le="{edge}"}} {count} {at_s}\n'
    yield f"vllm:{name}_sum{{{labels}}} {total / 10} {at_s}\n"
    yield f"vllm:{name}_count{{{labels}}} {total} {at_s}\n"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    page = folder / "past.om"
    page.write_text(page_of_the_past(int(time.clock_gettime(time.CLOCK_REALTIME))))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", page, folder / "data"],
        check=True,
        capture_output=True,
    )
    with real_prometheus(folder) as running:
        yield running


def sensor(url: str, **options: str) -> Prometheus:
    return Prometheus(url=url, queries={"one": "vector(1)"}, timeout_s=10.0, **options)  # type: ignore[arg-type]


async def test_the_first_start_fills_the_charts_from_the_server_s_own_series(
    prometheus: RealPrometheus, tmp_path: Path
) -> None:
    series = TimeSeries.load(tmp_path / "series.jsonl")

    await series.load_history(sensor(prometheus.url), (CHAT,), utc_now())

    rows = [row for row in series.minutes() if row.requests_rps]
    assert 50 <= len(rows) <= 60
    assert rows[0].at % 60 == 0
    middle = rows[len(rows) // 2]
    assert (middle.requests_rps, middle.running, middle.waiting, middle.kv_usage) == (2.0, 8.0, 3.0, 0.25)
    assert (middle.ttft_p95_s, middle.itl_p95_s) == (0.28, 0.28)  # 90 % of the way through the second bucket
    assert TimeSeries.load(tmp_path / "series.jsonl").minutes() == series.minutes()
    assert max(peak.rps for peak in series.peaks.hours()) == pytest.approx(2.0, rel=0.05)


async def test_the_busiest_minutes_are_those_of_the_servers(prometheus: RealPrometheus) -> None:
    until = int(utc_now().timestamp())

    peaks = await sensor(prometheus.url).read_peaks((CHAT,), until - 7 * 86_400, until + 3600)

    assert max(peaks.values()) == pytest.approx(2.0, rel=0.05)
    assert all(at % 3600 == 0 for at in peaks)


async def test_a_selector_names_the_series_where_the_address_does_not(prometheus: RealPrometheus) -> None:
    moved = Server(name="chat-r0", setting={}, address="chat.llm.svc:8000")
    until = int(utc_now().timestamp())

    with pytest.raises(SensorError, match="set history_selector"):
        await sensor(prometheus.url).read_history((moved,), 0, until)
    selecting = sensor(prometheus.url, history_selector=f'job="vllm",instance!="{STRANGER}"')
    rows = await selecting.read_history((moved,), 0, until)

    assert {row.running for row in rows if row.running is not None} == {8.0}


async def test_a_selector_that_is_no_promql_is_refused(prometheus: RealPrometheus) -> None:
    with pytest.raises(SensorError, match="is refused"):
        await sensor(prometheus.url, history_selector="job=").read_history(
            (CHAT,), 0, int(utc_now().timestamp())
        )
