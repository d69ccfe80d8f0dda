"""Minutes before the daemon's start, from a Prometheus that has scraped vLLM."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.model import Server
from flettner.sensors.prometheus.plugin import Prometheus

NOON = 1_800_000_000 // 3600 * 3600  # Unix time, s
HOUR = 3600
SERVERS = (
    Server(name="chat-r0", setting={}, address="10.0.0.1:8000"),
    Server(name="chat-r1", setting={}, address="[fd00::2]:8000"),
)


@dataclass
class FakePrometheus:
    """Answers a range query with a number at each step, by a word of the query; no series for other words."""

    numbers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    error: str = ""
    queries: list[Mapping[str, str]] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.queries.append(query)
        if self.error:
            return web.json_response({"status": "error", "error": self.error}, status=self.status)
        steps = range(int(query["start"]), int(query["end"]) + 1, int(query["step"]))
        series = [
            {"metric": {}, "values": [[at, number] for at in steps]}
            for word, number in self.numbers.items()
            if word in query["query"]
        ]
        text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})
        return web.Response(text=text, status=self.status, content_type="application/json")

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakePrometheus"]:
        app = web.Application()
        app.router.add_get("/api/v1/query_range", self.answer)
        async with TestServer(app) as server:
            self.url = str(server.make_url(""))
            yield self


def sensor(url: str, **options: object) -> Prometheus:
    return Prometheus(url=url, queries={"load": "node_load1"}, **options)  # type: ignore[arg-type]


async def test_each_minute_has_vllm_s_own_numbers() -> None:
    numbers = {
        "vllm:time_to_first_token_seconds_count": "2.5",
        "vllm:time_to_first_token_seconds_bucket": "0.41234",
        "vllm:inter_token_latency_seconds_bucket": "NaN",
        "vllm:num_requests_running": "12",
        "vllm:num_requests_waiting": "3",
        "vllm:kv_cache_usage_perc": "0.38",
    }
    async with FakePrometheus(numbers).running() as prometheus:
        rows = await sensor(prometheus.url).read_history(SERVERS, NOON, NOON + 3 * 60 + 59)

    assert [row.at for row in rows] == [NOON, NOON + 60, NOON + 120]
    row = rows[0]
    assert (row.requests_rps, row.ttft_p95_s, row.itl_p95_s) == (2.5, 0.4123, None)
    assert (row.running, row.waiting, row.kv_usage, row.preemptions_per_s) == (12.0, 3.0, 0.38, None)
    assert (row.goodput_rps, row.attainment) == (None, None)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param("", r"{instance=~`10\.0\.0\.1:8000|\[fd00::2\]:8000`}", id="the servers' addresses"),
        pytest.param('job="chat"', '{job="chat"}', id="configured"),
    ],
)
async def test_only_series_of_the_target_s_servers_are_read(selector: str, expected: str) -> None:
    async with FakePrometheus({"vllm": "1"}).running() as prometheus:
        await sensor(prometheus.url, history_selector=selector).read_history(SERVERS, NOON, NOON + HOUR)

    assert len(prometheus.queries) == 8
    for query in prometheus.queries:
        assert query["query"].count("vllm:") == query["query"].count(expected) > 0


async def test_the_busiest_minute_of_each_hour_of_a_week() -> None:
    async with FakePrometheus({"first_token_seconds_count": "5.2"}).running() as prometheus:
        peaks = await sensor(prometheus.url).read_peaks(SERVERS, NOON - 7 * 24 * HOUR, NOON + 59)
        none = await sensor(prometheus.url, history_hours=0.0).read_peaks(SERVERS, 0, NOON)

    assert peaks == dict.fromkeys(range(NOON - 7 * 24 * HOUR, NOON, HOUR), 5.2)
    assert none == {}
    (query,) = prometheus.queries
    assert query["query"].startswith("max_over_time((sum(rate(vllm:time_to_first_token_seconds_count{")
    assert query["query"].endswith(")[1h:1m])")


@pytest.mark.parametrize(
    ("hours", "after", "minutes"),
    [
        pytest.param(6.0, 0, 360, id="at most these hours"),
        pytest.param(6.0, NOON - HOUR, 60, id="what is missing"),
        pytest.param(24.0, 0, 1440, id="a day"),
        pytest.param(0.0, 0, 0, id="nothing"),
    ],
)
async def test_the_hours_are_bounded(hours: float, after: int, minutes: int) -> None:
    async with FakePrometheus({"running": "1"}).running() as prometheus:
        rows = await sensor(prometheus.url, history_hours=hours).read_history(SERVERS, after, NOON)

    assert [row.at for row in rows] == list(range(NOON - minutes * 60, NOON, 60))


@pytest.mark.parametrize(
    ("prometheus", "why"),
    [
        pytest.param(FakePrometheus(), "set history_selector", id="no series"),
        pytest.param(FakePrometheus(status=400, error="parse error"), "refused: parse error", id="refused"),
        pytest.param(FakePrometheus(status=503, error="loading"), "answers 503 loading", id="unavailable"),
        pytest.param(FakePrometheus({"running": "a lot"}), "returns text, not a number", id="text"),
        pytest.param(FakePrometheus({"running": "1", "num_requests": "2"}), "returns 2 series", id="several"),
    ],
)
async def test_what_fails_is_said(prometheus: FakePrometheus, why: str) -> None:
    async with prometheus.running():
        with pytest.raises(SensorError, match=why):
            await sensor(prometheus.url).read_history(SERVERS, 0, NOON)


async def test_without_an_address_nothing_is_asked() -> None:
    async with FakePrometheus({"running": "1"}).running() as prometheus:
        with pytest.raises(SensorError, match="set history_selector"):
            await sensor(prometheus.url).read_history((Server(name="chat-r0", setting={}),), 0, NOON)

    assert prometheus.queries == []
