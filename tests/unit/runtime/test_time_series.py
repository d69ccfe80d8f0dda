"""The time series of a target, one row a minute: aggregation and persistence."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.events import Observed
from flettner.agent.domain.headroom import HourPeak, KvPeak
from flettner.agent.domain.model import Objective, Server, Slo
from flettner.agent.domain.reading import EngineLiveness, Gpu, Latency, Reading, Request
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.observe.minute_rows import MinuteRow, downsample, interpolate_quantile
from flettner.agent.runtime.time_series import KEPT_MINUTES, TimeSeries
from tests.support.fake_daemon_view import NOON, steady
from tests.support.fast_time import in_no_time

SLO = Slo(ttft=Objective(under_s=0.5, share=0.95))


def answered(*firsts_s: float) -> RequestCounts:
    requests = [
        Request(server="chat-r0", outcome="ok", status=200, duration_s=2.0, ttft_s=first_s)
        for first_s in firsts_s
    ]
    return count_requests(requests, SLO)


def reading(at: datetime, **more: object) -> Reading:
    return Reading(
        at=at,
        server="chat-r0",
        span_s=30.0,
        coverage=1.0,
        running=steady(8.0),
        waiting=steady(2.0),
        **more,  # type: ignore[arg-type]
    )


def watch(series: TimeSeries, begin: datetime, seconds: int, **what: object) -> None:
    for second in range(seconds):
        series.add(Observed(at=begin + timedelta(seconds=second), **what))  # type: ignore[arg-type]


def test_the_fullest_minute_of_an_hour_counts_tokens_where_the_size_of_the_cache_is_known() -> None:
    series, facts = TimeSeries(), {"num_gpu_blocks": "1000", "block_size": "16"}
    for minute, usage in enumerate((0.2, 0.5, 0.1)):
        at = NOON + timedelta(minutes=minute)
        watch(series, at, 60, reading=reading(at, kv_usage=steady(usage), facts=facts))
    watch(series, NOON + timedelta(minutes=3), 61, reading=reading(NOON, kv_usage=steady(0.9)))

    assert series.peaks.fullest_kv() == KvPeak(tokens=8_000.0, hours=1)


def test_a_minute_counts_the_requests_of_all_servers() -> None:
    series = TimeSeries()
    watch(series, NOON, 60, arms={"chat-r0": answered(0.1, 0.2), "chat-r1": answered(0.3, 0.9)})
    watch(series, NOON + timedelta(seconds=60), 1)

    (minute,) = series.minutes()

    assert minute.at == int(NOON.timestamp())
    assert (minute.requests_rps, minute.goodput_rps, minute.attainment) == (4.0, 3.0, 0.75)
    assert minute.ttft_p95_s == pytest.approx(0.9, rel=0.2)


def test_uses_vllm_histograms_without_proxy_records() -> None:
    series = TimeSeries()
    ttft = Latency(count=60, p50=0.1, p95=0.6, p99=0.9, over_slo=0.1)
    gpu = Gpu(index=0, uuid="GPU-0", utilization=0.8, memory_used_mib=60, memory_total_mib=80)
    for second in range(61):
        at = NOON + timedelta(seconds=second)
        series.add(Observed(at=at, reading=reading(at, ttft=ttft, kv_usage=steady(0.5), gpus=(gpu,))))

    (minute,) = series.minutes()

    assert (minute.requests_rps, minute.goodput_rps, minute.attainment) == (2.0, 1.8, 0.9)
    assert (minute.running, minute.waiting, minute.kv_usage) == (8.0, 2.0, 0.5)
    assert (minute.ttft_p95_s, minute.gpu_utilization, minute.gpu_memory) == (0.6, 0.8, 0.75)


def test_a_minute_has_the_tokens_of_all_servers_and_the_power_of_all_gpus() -> None:
    """Also of seconds between two windows of a reading, in which the power differs."""
    series = TimeSeries()
    gpus = [
        (Gpu(index=0, uuid="0", power_w=w), Gpu(index=1, uuid="1", power_w=100.0)) for w in (300.0, 500.0)
    ]
    live = EngineLiveness(age_s=0.5, running=4, waiting=0, tokens=120.0, generated=40.0)
    for second in range(61):
        at = NOON + timedelta(seconds=second)
        engines = {
            "chat-r0": live,
            "chat-r1": replace(live, generated=20.0),
            "chat-r2": replace(live, lost=True),
        }
        series.add(Observed(at=at, reading=reading(at, gpus=gpus[second % 2]), engines=engines))

    (minute,) = series.minutes()

    assert (minute.generated_per_s, minute.power_w) == (60.0, 500.0)
    assert series.latest(5) == (minute,)


def test_the_power_is_unknown_where_one_gpu_does_not_report_it() -> None:
    series = TimeSeries()
    gpus = (Gpu(index=0, uuid="0", power_w=300.0), Gpu(index=1, uuid="1"))
    for second in range(61):
        at = NOON + timedelta(seconds=second)
        series.add(Observed(at=at, reading=reading(at, gpus=gpus)))

    assert series.minutes()[0].power_w is None


def test_a_minute_without_data_is_a_gap() -> None:
    series = TimeSeries()
    watch(series, NOON, 200)

    assert series.minutes() == ()


def test_repeats_no_minute_after_the_clock_is_set_back() -> None:
    series = TimeSeries()
    watch(series, NOON, 130, arms={"chat-r0": answered(0.1)})
    watch(series, NOON - timedelta(minutes=30), 130, arms={"chat-r0": answered(0.1)})
    watch(series, NOON + timedelta(seconds=130), 60, arms={"chat-r0": answered(0.1)})

    times = [minute.at for minute in series.minutes()]

    assert times == sorted(set(times))


def test_the_series_survives_a_daemon_restart(tmp_path: Path) -> None:
    file = tmp_path / "series.jsonl"
    series = TimeSeries.load(file)
    watch(series, NOON, 121, arms={"chat-r0": answered(0.1)})
    with file.open("ab") as lines:
        lines.write(b'{"at":17')  # torn by a crash

    assert TimeSeries.load(file).minutes() == series.minutes() != ()


def test_the_file_stays_small(tmp_path: Path) -> None:
    file = tmp_path / "series.jsonl"
    begin = int(NOON.timestamp()) - 60 * 3 * KEPT_MINUTES
    lines = [f'{{"at":{begin + 60 * number},"running":1.0}}\n' for number in range(3 * KEPT_MINUTES)]
    file.write_text("".join(lines))
    series = TimeSeries.load(file)
    watch(series, NOON, 61, arms={"chat-r0": answered(0.1)})

    assert len(file.read_text().splitlines()) == len(series.minutes()) == KEPT_MINUTES


def test_a_full_disk_loses_only_the_persisted_series(tmp_path: Path) -> None:
    series = TimeSeries.load(tmp_path / "missing" / "series.jsonl")
    watch(series, NOON, 121, arms={"chat-r0": answered(0.1)})

    assert len(series.minutes()) == 2


def test_merged_points_take_the_worst_latency_and_weighted_shares() -> None:
    busy = MinuteRow(at=0, requests_rps=9.0, attainment=1.0, ttft_p95_s=0.1, running=4.0)
    idle = MinuteRow(at=60, requests_rps=1.0, attainment=0.0, ttft_p95_s=0.4)

    (both,) = downsample((busy, idle), 120)

    assert both == MinuteRow(at=0, requests_rps=5.0, attainment=0.9, ttft_p95_s=0.4, running=4.0)


def test_a_quantile_lies_inside_its_bucket() -> None:
    arm = answered(*[0.1] * 50, *[0.2] * 50)

    assert interpolate_quantile(arm.ttft, 0.99) == pytest.approx(0.2, rel=0.1)
    assert interpolate_quantile(RequestCounts().ttft, 0.95) is None


@dataclass
class Past:
    """A source of history; `wait_s`: until its answer."""

    rows: Sequence[MinuteRow] = ()
    error: Exception | None = None
    wait_s: float = 0.0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    peaks: Mapping[int, float] = field(default_factory=dict)

    async def read_history(self, servers: Sequence[Server], after: int, until: int) -> Sequence[MinuteRow]:
        del servers
        self.ranges.append((after, until))
        await asyncio.sleep(self.wait_s)
        if self.error is not None:
            raise self.error
        return self.rows

    async def read_peaks(self, servers: Sequence[Server], after: int, until: int) -> Mapping[int, float]:
        del servers
        await asyncio.sleep(0)
        return {at: rps for at, rps in self.peaks.items() if after <= at <= until}


def past_hour(running: float = 5.0) -> list[MinuteRow]:
    noon = int(NOON.timestamp())
    return [MinuteRow(at=at, running=running) for at in range(noon - 3600, noon, 60)]


def test_the_first_start_loads_what_a_source_knows_and_keeps_it(tmp_path: Path) -> None:
    file, source = tmp_path / "series.jsonl", Past(past_hour())
    series = TimeSeries.load(file)

    with capture_logs() as logs:
        in_no_time(series.load_history(source, (), NOON))

    assert series.minutes() == tuple(past_hour())
    assert TimeSeries.load(file).minutes() == series.minutes()
    assert source.ranges == [(0, int(NOON.timestamp()))]
    assert [(line["event"], line["minutes"], line["since"]) for line in logs] == [
        ("history.loaded", 60, "2026-11-20T11:00:00+00:00")
    ]


def test_a_later_start_loads_only_what_is_missing_and_replaces_no_row(tmp_path: Path) -> None:
    row = MinuteRow(at=past_hour()[29].at, running=1.0)
    (tmp_path / "series.jsonl").write_text(json.dumps({"at": row.at, "running": 1.0}) + "\n")
    series, source = TimeSeries.load(tmp_path / "series.jsonl"), Past(past_hour()[29:])

    in_no_time(series.load_history(source, (), NOON))

    assert series.minutes() == (row, *past_hour()[30:])
    assert source.ranges == [(row.at + 60, int(NOON.timestamp()))]


def test_minutes_that_are_watched_meanwhile_stay() -> None:
    series, source = TimeSeries(), Past(past_hour(), wait_s=50.0)

    async def scenario() -> None:
        loading = asyncio.create_task(series.load_history(source, (), NOON))
        await asyncio.sleep(0)
        watch(series, NOON, 61, reading=reading(NOON))
        await loading

    in_no_time(scenario())

    assert [row.running for row in series.minutes()] == [5.0] * 60 + [8.0]


def test_the_peaks_of_a_week_come_from_the_minutes_and_from_a_source(tmp_path: Path) -> None:
    noon = int(NOON.timestamp())
    series = TimeSeries.load(tmp_path / "series.jsonl")
    watch(series, NOON, 61, arms={"chat-r0": answered(0.1, 0.2)})
    source = Past(peaks={noon: 1.0, noon - 3600: 5.0, noon - 8 * 24 * 3600: 9.0})

    in_no_time(series.load_history(source, (), NOON + timedelta(minutes=2)))

    assert series.peaks.hours() == (HourPeak(at=noon - 3600, rps=5.0), HourPeak(at=noon, rps=2.0))
    assert TimeSeries.load(tmp_path / "series.jsonl").peaks.hours() == series.peaks.hours()


def test_a_short_restart_asks_for_nothing() -> None:
    series, source = TimeSeries(), Past(past_hour())
    watch(series, NOON, 61, reading=reading(NOON))

    in_no_time(series.load_history(source, (), NOON + timedelta(minutes=5)))

    assert source.ranges == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param(Past(error=SensorError("no Prometheus")), "no Prometheus", id="it fails"),
        pytest.param(Past(wait_s=1e6), "no answer within 60 s", id="it never answers"),
        pytest.param(Past(error=KeyError("a bug")), None, id="it is broken"),
    ],
)
def test_a_source_that_fails_is_logged_and_ends_nothing(source: Past, why: str | None) -> None:
    series = TimeSeries()

    with capture_logs() as logs:
        in_no_time(series.load_history(source, (), NOON))

    assert series.minutes() == ()
    assert [line.get("why") for line in logs] == [why]
