"""The time series of a target, one row a minute: aggregation and persistence."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from flettner.agent.domain.events import Observed
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Gpu, Latency, Reading, Request
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.observe.minute_rows import MinuteRow, downsample, interpolate_quantile
from flettner.agent.runtime.time_series import KEPT_MINUTES, TimeSeries
from tests.support.fake_daemon_view import NOON, steady

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
