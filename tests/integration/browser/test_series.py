"""The time series of a target, one point a minute: aggregation, persistence and API."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from agent.domain.events import Observed
from agent.domain.model import Objective, Slo
from agent.domain.reading import Gpu, Latency, Reading, Request
from agent.domain.request_counts import RequestCounts, count_requests
from agent.domain.state import Rollout
from agent.observe.timeseries import KEPT_MINUTES, MinuteRow, TimeSeries, downsample, interpolate_quantile
from tests.support.fake_daemon_view import NOON, PLAN, FakeDaemonView, steady
from tests.unit.api.conftest import Client, bearers, client, daemon, tokens

__all__ = ["bearers", "client", "daemon", "tokens"]  # fixtures

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


def hours(*, minutes: int, without: Sequence[int] = ()) -> list[MinuteRow]:
    begin = int(NOON.timestamp()) - minutes * 60
    return [
        MinuteRow(at=begin + 60 * number, running=float(number))
        for number in range(minutes)
        if number not in without
    ]


async def test_the_columns_are_of_one_length_and_gaps_are_null(
    client: Client, daemon: FakeDaemonView
) -> None:
    daemon.hours["chat"] = hours(minutes=10, without=(4, 5))
    async with client.get("/v1/targets/chat/series?hours=1") as response:
        series = await response.json()

    assert series["every_s"] == 60
    assert series["start"] == "2026-11-20T11:50:00Z"
    assert series["running"] == [0.0, 1.0, 2.0, 3.0, None, None, 6.0, 7.0, 8.0, 9.0]
    assert {len(column) for column in series.values() if isinstance(column, list) and column} == {10}


async def test_downsamples_a_day(client: Client, daemon: FakeDaemonView) -> None:
    daemon.hours["chat"] = hours(minutes=1440)
    async with client.get("/v1/targets/chat/series?hours=24&points=144") as response:
        series = await response.json()

    assert (series["every_s"], len(series["running"])) == (600, 144)


async def test_omits_points_older_than_the_requested_range(client: Client, daemon: FakeDaemonView) -> None:
    daemon.hours["chat"] = hours(minutes=1440)
    async with client.get("/v1/targets/chat/series?hours=2") as response:
        series = await response.json()

    assert len(series["running"]) == 120


async def test_rollouts_are_marked(client: Client, daemon: FakeDaemonView) -> None:
    began = NOON - timedelta(minutes=30)
    rollout = Rollout(
        id="chat-o1",
        suggestion="chat-s1",
        server="chat-r1",
        plan=PLAN,
        started_at=began,
        phase_since=began,
        outcome="promoted",
        ended_at=NOON,
    )
    daemon._rollouts = {"chat-o1": ("chat", rollout), "other-o1": ("other", rollout)}
    async with client.get("/v1/targets/chat/series?hours=1") as response:
        series = await response.json()

    assert [(mark["what"], mark["rollout"]) for mark in series["marks"]] == [
        ("started", "chat-o1"),
        ("promoted", "chat-o1"),
    ]
