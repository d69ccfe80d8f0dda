import asyncio
import gzip
import json
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.reading import SeriesSample, SourceState
from flettner.primitives.wall_clock import utc_now
from flettner.sensors.prometheus.plugin import Prometheus
from flettner.sensors.prometheus.promql import Connection, QueryError, read_number
from flettner.sensors.prometheus.selectors import build_age_query
from tests.support.prometheus_server import Page, RealPrometheus, real_prometheus
from tests.unit.sensors.pages import answer, page_server
from tests.unit.sensors.run_sensor import ReceivedSamples
from tests.unit.sensors.run_sensor import run_sensor as run_sensor_at

pytestmark = pytest.mark.smoke


def present_s() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME)


run_sensor = partial(run_sensor_at, now=utc_now)


def packed(body: bytes) -> bytes:
    small = gzip.compress(body)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(small)}\r\n\r\n"
    return head.encode() + small


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(
        samples={
            "steady": "3",
            "odd": "NaN",
            "endless": "+Inf",
            'two{a="1"}': "1",
            'two{a="2"}': "2",
            "up_since": str(time.clock_gettime(time.CLOCK_REALTIME)),
        },
        counters={"events_total": 0.0},
    )


@pytest.fixture(scope="module")
def dying() -> Page:
    return Page(samples={"heartbeat": "7"}, counters={"beats_total": 0.0})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, page: Page, dying: Page) -> Iterator[RealPrometheus]:
    with real_prometheus(tmp_path_factory.mktemp("prometheus"), page, dying) as running:
        running.until("rate(events_total[10s])", lambda values: len(values) == 1 and values[0] > 0)
        yield running


def asking(url: str, queries: Mapping[str, str], *, timeout_s: float = 10.0) -> Prometheus:
    return Prometheus(url=url, queries=queries, every_s=0.05, stale_after_s=5.0, timeout_s=timeout_s)


async def values_of(url: str, **queries: str) -> tuple[Mapping[str, float | None], list[SourceState]]:
    async with run_sensor(asking(url, queries)) as received:
        sample = await received.next(SeriesSample)
    return sample.values, received.states()


async def test_each_query_returns_its_value(prometheus: RealPrometheus) -> None:
    values, states = await values_of(
        prometheus.url, gauge="steady", scalar="2 + 2", summed="sum(two)", up='up{job="t"} == 1 and steady'
    )

    assert values == {"gauge": 3.0, "scalar": 4.0, "summed": 3.0, "up": 1.0}
    assert states == []


@pytest.mark.parametrize(
    "promql", ["odd", "endless", "0 / 0", "no_such_metric", "steady > 4", "sum(rate(no_such[1m]))"]
)
async def test_a_result_without_a_number_is_none(prometheus: RealPrometheus, promql: str) -> None:
    assert await values_of(prometheus.url, one=promql) == ({"one": None}, [])


async def test_applies_the_default_of_a_missing_series(prometheus: RealPrometheus) -> None:
    values, states = await values_of(
        prometheus.url, errors="sum(rate(no_such[1m])) or vector(0)", gone="absent(no_such)"
    )

    assert values == {"errors": 0.0, "gone": 1.0}
    assert states == []


@pytest.mark.parametrize(
    ("promql", "why"),
    [
        ("two", "returns 2 series, not one"),
        ("sum(", "unclosed left parenthesis"),
        ("steady{", "is refused"),
        ("steady[10s]", "wrap it in rate() or max_over_time()"),
        ('"text"', "returns text"),
        ("two * on () group_left () two", "is refused"),
    ],
)
async def test_reports_an_invalid_query_once_and_keeps_the_other_queries(
    prometheus: RealPrometheus, promql: str, why: str
) -> None:
    async with run_sensor(asking(prometheus.url, {"bad": promql, "good": "steady"})) as received:
        await received.until(lambda: len(received.of(SeriesSample)) == 3)

    assert received.of(SeriesSample)[-1].values == {"bad": None, "good": 3.0}
    assert [(state.source, state.available) for state in received.states()] == [("prometheus bad", False)]
    assert why in received.states()[0].why


async def test_returns_no_value_after_the_target_is_killed(prometheus: RealPrometheus, dying: Page) -> None:
    queries = {"now": "heartbeat", "rate": "sum(rate(beats_total[1m]))", "other": "steady"}
    async with run_sensor(asking(prometheus.url, queries)) as received:
        await received.until(lambda: seen(received, now=7.0) and has_rate(received))
        dying.stop()
        try:
            await received.until(lambda: seen(received, now=None, rate=None, other=3.0))
            left = prometheus.values("sum(rate(beats_total[1m]))")
            dying.start()
            await received.until(lambda: seen(received, now=7.0) and has_rate(received))
        finally:
            dying.stop()
            dying.start()

    assert left != []  # Prometheus itself still returns values
    assert {state.source for state in received.states()} == {"prometheus rate"}
    assert "series that have ended" in received.states()[0].why


def seen(received: ReceivedSamples, **values: float | None) -> bool:
    samples = received.of(SeriesSample)
    return bool(samples) and values.items() <= samples[-1].values.items()


def has_rate(received: ReceivedSamples) -> bool:
    """False until Prometheus has scraped the counter twice."""
    return bool(received.of(SeriesSample)[-1].values["rate"])


async def test_a_counter_reset_gives_no_negative_rate_and_no_window_before_the_restart(
    prometheus: RealPrometheus, page: Page
) -> None:
    old_enough = "and on (instance) (time() - up_since > {:d})"
    queries = {
        "rate": "sum(rate(events_total[5s]))",
        "young": f"sum(rate(events_total[5s]) {old_enough.format(3600)})",
        "old": f"sum(rate(events_total[5s]) {old_enough.format(0)})",
    }
    async with run_sensor(asking(prometheus.url, queries)) as received:
        await received.until(lambda: page.counters["events_total"] > 10)
        page.counters["events_total"] = 0.0
        await received.until(lambda: page.counters["events_total"] > 5)

    samples = [sample.values for sample in received.of(SeriesSample)]
    assert all((values["rate"] or 0.0) >= 0.0 for values in samples)
    assert {values["young"] for values in samples} == {None}
    assert samples[-1]["old"] is not None
    assert received.states() == []


async def test_reports_a_crashed_prometheus_once_and_ignores_stale_values(
    tmp_path: Path,
) -> None:
    page = Page(samples={"load": "5"}, counters={"work_total": 0.0})
    queries = {"load": "load", "alive": "up", "rate": "sum(rate(work_total[1m]))", "constant": "vector(1)"}
    with real_prometheus(tmp_path, page) as prometheus:
        sensor = Prometheus(
            url=prometheus.url, queries=queries, every_s=0.05, stale_after_s=2.0, timeout_s=10.0
        )
        async with run_sensor(sensor) as received:
            await received.until(
                lambda: seen(received, load=5.0, alive=1.0) and received.of(SeriesSample)[-1].values["rate"]
            )
            prometheus.kill()
            page.stop()
            await received.until(lambda: seen(received, load=None, alive=None, rate=None, constant=None))
            await asyncio.sleep(2.0)
            restarted = len(received.of(SeriesSample))
            prometheus.start()
            old = prometheus.values("load"), len(prometheus.values("sum(rate(work_total[1m]))"))
            await received.until(lambda: seen(received, constant=1.0))
            after = [sample.values for sample in received.of(SeriesSample)[restarted:]]
            page.start()
            await received.until(lambda: seen(received, load=5.0, alive=1.0))

    assert old == ([5.0], 1)  # it still returns its old values
    assert {(values["load"], values["rate"]) for values in after} == {(None, None)}
    whole = [state for state in received.states() if state.source == "prometheus"]
    assert [state.available for state in whole] == [False, True]
    assert "does not answer" in whole[0].why
    stale = [state for state in received.states() if state.source == "prometheus load"]
    assert [state.available for state in stale] == [False, True]
    assert "s old, or from the future; stale_after_s is 2" in stale[0].why


def series(at_s: float, value: float = 1) -> bytes:
    result = [{"metric": {}, "value": [at_s, str(value)]}]
    return answer(json.dumps({"data": {"result": result}}).encode())


@pytest.mark.parametrize(
    ("ahead_s", "age_s", "why"),
    [
        pytest.param(60, 0, "s in the future by this host's clock", id="Prometheus' clock is ahead"),
        pytest.param(-60, 0, "s ago by this host's clock: a cached answer", id="a cached answer"),
        pytest.param(0, 60, "reads samples that are 60.0 s old, or from the future", id="its samples"),
    ],
)
async def test_a_value_from_another_time_is_refused_and_reported_once(
    ahead_s: float, age_s: float, why: str
) -> None:
    """`age_s`: of the samples, of which the query takes the absolute value."""
    ages = quote_plus(build_age_query("load") or "")
    assert "abs" in ages
    async with page_server() as pages:
        base = "/api/v1/query?query="
        pages.answers = {
            f"{base}load": series(present_s() + ahead_s),
            f"{base}{ages}": series(present_s(), age_s),
        }
        async with run_sensor(asking(f"http://{pages.address}", {"load": "load"})) as received:
            await received.until(lambda: len(received.of(SeriesSample)) == 3)
            assert received.of(SeriesSample)[-1].values == {"load": None}
            pages.answers = {f"{base}load": series(present_s()), f"{base}{ages}": series(present_s(), 0.5)}
            await received.until(lambda: seen(received, load=1.0))

    assert [(state.source, state.available) for state in received.states()] == [
        ("prometheus load", False),
        ("prometheus load", True),
    ]
    assert why in received.states()[0].why


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "timed out"),
        (answer(b"<html></html>"), "does not answer like a Prometheus"),
        (answer(b'{"status": "success"}'), "does not answer like a Prometheus"),
        (answer(b"[]"), "does not answer like a Prometheus"),
        (answer(b'{"data": {"result": []}}')[:-3], "does not answer"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nno!", "503"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "401"),
        (answer(b'{"data": {"result": []}' + b" " * 2**23 + b"}"), "larger than 8388608 bytes"),
        (packed(b'{"data": {"result": []}' + b" " * 2**24 + b"}"), "larger than 8388608 bytes"),
        (answer(b"[" * 100_000), "does not answer like a Prometheus"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000, "500"),
        (b"garbage\r\n\r\n", "does not answer"),
        (b"", "does not answer"),
    ],
    ids=[
        *("hung", "html", "no data", "list", "cut", "503", "401", "large", "large when unpacked"),
        *("nested", "nested refusal", "garbage", "closed"),
    ],
)
async def test_reports_a_failing_server_as_lost_once(body: bytes | None, why: str) -> None:
    async with page_server() as pages:
        queried = "/api/v1/query?query=vector%281%29"
        pages.answers = {queried: body}
        url = f"http://{pages.address}/"
        async with run_sensor(
            asking(url, {"one": "vector(1)"}, timeout_s=0.3 if body is None else 10.0)
        ) as received:
            await received.until(lambda: len(received.of(SeriesSample)) == 3)
            sample = received.of(SeriesSample)[-1]
            pages.answers = {queried: series(present_s())}
            await received.until(lambda: seen(received, one=1.0))

    assert sample.values == {"one": None}
    assert [(state.source, state.available) for state in received.states()] == [
        ("prometheus", False),
        ("prometheus", True),
    ]
    assert why in received.states()[0].why


async def test_reports_a_slow_response_and_waits_in_one_thread() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        connections.append(writer)
        writer.write(head)
        while not heard_enough.is_set():
            writer.write(b" ")
            await asyncio.sleep(0.05)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        done.set()

    connections: list[asyncio.StreamWriter] = []
    heard_enough, done = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with run_sensor(asking(url, {"one": "vector(1)"}, timeout_s=0.3)) as received:
        await received.until(received.states)
        first = len(connections)
        await asyncio.sleep(0.3)
        second = len(connections)
    heard_enough.set()
    await done.wait()
    server.close()

    assert "did not answer all queries" in received.states()[0].why
    assert (first, second) == (1, 1)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, 10**4000])
    | st.floats()
    | st.text(max_size=10)
    | st.floats().map(str),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["value", "values", "metric"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
RESULTS = (
    st.lists(st.fixed_dictionaries({"metric": JSON, "value": st.tuples(JSON, JSON).map(list)}), max_size=3)
    | JSON
    | st.tuples(JSON, JSON).map(list)
)


@given(RESULTS)
def test_any_result_is_a_finite_number_none_or_a_query_error(result: object) -> None:
    try:
        value = read_number(result)
    except QueryError as error:
        value, why = None, str(error)
    else:
        why = ""

    assert value is None or isfinite(value)
    assert len(why) < 500


@contextmanager
def saying(answers: list[bytes]) -> Iterator[str]:
    """A server that answers each request with the last of `answers` and closes the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            with suppress(ConnectionError):
                self.wfile.write(answers[-1])

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def source() -> Iterator[tuple[list[bytes], Connection]]:
    answers = [b""]
    with saying(answers) as url:
        connection = Connection(url, timeout_s=10.0)
        yield answers, connection
        connection.close()


BODIES = (
    st.binary(max_size=100)
    | JSON.map(lambda body: json.dumps(body).encode())
    | RESULTS.map(lambda result: json.dumps({"data": {"result": result}}).encode())
    | JSON.map(lambda why: json.dumps({"error": why}).encode())
    | st.integers(0, 20_000).map(lambda depth: b'{"data": {"result": ' + b"[" * depth)
    | st.integers(0, 20_000).map(lambda digits: b'{"data": {"result": [' + b"9" * digits + b', "1"]}}')
)
HEADS = st.sampled_from(
    [b"", b"Content-Encoding: gzip\r\n", b"Transfer-Encoding: chunked\r\n", b"Location: http://[\r\n"]
)


@given(st.sampled_from([200, 204, 302, 400, 422, 500]), HEADS, BODIES, st.booleans())
def test_any_bytes_are_a_result_or_a_source_error(
    source: tuple[list[bytes], Connection], status: int, head: bytes, body: bytes, whole: bool
) -> None:
    answers, connection = source
    line = f"HTTP/1.1 {status} Said\r\nConnection: close\r\nContent-Length: {len(body)}\r\n".encode()
    answers.append(line + head + b"\r\n" + body if whole else body)

    try:
        samples = connection.run({"one": "vector(1)", "two": "steady"}, 5.0, utc_now)
        points = connection.run_range("vector(1)", 0, 120, 60)
    except SensorError as error:
        samples, points, why = {}, {}, str(error)
    else:
        why = ""

    assert len(why) < 1000
    assert all(sample.value is None or isfinite(sample.value) for sample in samples.values())
    assert set(points) <= {0, 60, 120}
    assert all(map(isfinite, points.values()))
    assert all(len(sample.why) < 500 for sample in samples.values())


@pytest.mark.parametrize(
    "options",
    [
        {"url": "localhost:9090", "queries": {"a": "b"}},
        {"url": 9090, "queries": {"a": "b"}},
        {"url": "http://localhost:9090"},
        {"url": "http://localhost:9090", "queries": {"a": " "}},
        {"url": "http://localhost:9090", "queries": {"a": 1}},
        {"url": "http://localhost:9090", "queries": "up"},
        {"url": "http://localhost:9090", "queries": {"a": "b"}, "every_s": 0},
        {"url": "http://localhost:9090", "queries": {"a": "b"}, "stale_after_s": -1},
        {"url": "http://localhost:9090", "queries": {"a": "b"}, "history_hours": 25},
        {"url": "http://localhost:9090", "queries": {"a": "b"}, "history_hours": -1},
    ],
)
def test_rejects_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Prometheus(**options)
