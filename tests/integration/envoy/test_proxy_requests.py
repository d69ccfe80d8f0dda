import asyncio
import os
import re
import signal
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Server, Slo
from flettner.agent.domain.ports import Now, Site
from flettner.agent.domain.reading import Request, RequestSample, Sample, SourceState
from flettner.primitives.wall_clock import utc_now
from flettner.sensors.proxy_requests.plugin import ProxyRequests
from flettner.sensors.proxy_requests.record_socket import RECORD_CLOCK_S
from tests.support.ports import free_port
from tests.support.sse_backend import Backend, ask, count_answers, until


def noon() -> datetime:
    return datetime(2026, 6, 1, 12, tzinfo=UTC)


@dataclass
class SensorOutput:
    """The view of a sensor and its output."""

    state_dir: Path
    target: str = "chat"
    slo: Slo = field(default_factory=Slo)
    samples: list[Sample] = field(default_factory=list)

    def servers(self) -> Sequence[Server]:
        return ()

    @property
    def requests(self) -> list[Request]:
        samples = [sample for sample in self.samples if isinstance(sample, RequestSample)]
        return [request for sample in samples for request in sample.requests]

    @property
    def states(self) -> list[tuple[str, bool]]:
        return [(state.source, state.available) for state in self.samples if isinstance(state, SourceState)]

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((request.server, request.outcome) for request in self.requests)

    async def until_counted(self, total: int) -> None:
        async def all_counted() -> bool:
            return len(self.requests) >= total

        await until(all_counted)

    async def until_state(self, *states: tuple[str, bool]) -> None:
        async def is_reported() -> bool:
            return self.states == list(states)

        await until(is_reported)

    async def until_last_states(self, *states: tuple[str, bool]) -> None:
        async def are_reported() -> bool:
            return self.states[-len(states) :] == list(states)

        await until(are_reported)


@asynccontextmanager
async def listening(sensor: ProxyRequests, received: SensorOutput, now: Now = noon) -> AsyncIterator[None]:
    task = asyncio.create_task(sensor.run(received, received.samples.append, now))
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
def received(tmp_path: Path) -> SensorOutput:
    return SensorOutput(tmp_path / "chat")


@pytest.fixture
async def sensor(received: SensorOutput) -> AsyncIterator[ProxyRequests]:
    proxy_requests = ProxyRequests(stalled_after_s=1.0, every_s=0.1)
    async with listening(proxy_requests, received):
        yield proxy_requests


@pytest.fixture
async def traffic(tmp_path: Path, blue: Backend, green: Backend) -> AsyncIterator[EnvoyTraffic]:
    """All traffic to green; requests that green fails before a response are retried on blue."""
    unbound = EnvoyPlugin(listen=f"127.0.0.1:{free_port()}", report_every_s=0.25)
    bound = unbound.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=1))
    weights = {blue.name: 0, green.name: 100}
    await bound.route(
        Route(number=1, servers=(blue.server, green.server), weights=weights, fallback=blue.name)
    )
    yield bound
    await bound.stop()


@pytest.mark.usefixtures("sensor")
@pytest.mark.parametrize(
    ("mode", "stream", "green_is", "blue_is"),
    [
        ("ok", True, "ok", None),
        ("ok", False, "ok", None),
        ("400", True, "refused", None),
        ("400", False, "refused", None),
        ("500", True, "failed", None),
        ("503", True, "failed", "ok"),
        ("reset", True, "failed", "ok"),
        ("cut", True, "truncated", None),
        ("unfinished", True, "truncated", None),
        ("error", True, "truncated", None),
        ("abort", True, "aborted", None),
        ("abort", False, "aborted", None),
    ],
)
async def test_counts_every_attempt_for_its_server(
    received: SensorOutput,
    traffic: EnvoyTraffic,
    blue: Backend,
    green: Backend,
    client: aiohttp.ClientSession,
    mode: str,
    stream: bool,
    green_is: str,
    blue_is: str | None,
) -> None:
    green.mode = mode  # type: ignore[assignment]
    expected = Counter({(green.name, green_is): 12})
    if blue_is:
        expected[blue.name, blue_is] = 12

    await asyncio.gather(*(ask(client, traffic.listen, stream=stream) for _ in range(12)))
    await received.until_counted(expected.total())
    await asyncio.sleep(0.4)  # all records are written: none is counted twice

    assert received.counts == expected
    assert received.states == [("proxy_requests", True)]


@pytest.mark.usefixtures("sensor")
@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("acme/legal-lora:v2", "acme/legal-lora:v2"),
        ("a b", ""),
        ("x" * 600, ""),
        (" The model `legal", ""),
        ('","message":"The model `legal', ""),
    ],
    ids=["a name", "with a space", "too long", "as if of the server", "as if the answer's own"],
)
async def test_a_model_that_the_server_does_not_serve_is_named(
    received: SensorOutput,
    traffic: EnvoyTraffic,
    green: Backend,
    client: aiohttp.ClientSession,
    asked: str,
    name: str,
) -> None:
    green.mode = "404"

    url = f"http://{traffic.listen}/v1/completions"
    async with client.post(url, json={"model": asked, "stream": True}) as answer:
        text = await answer.text()
    await received.until_counted(1)

    assert (answer.status, "does not exist" in text) == (404, True)
    assert [(one.outcome, one.unknown_model) for one in received.requests] == [("refused", name)]


@pytest.mark.usefixtures("sensor")
@pytest.mark.parametrize(("mode", "status"), [("reset", 0), ("gone", 0), ("503", 503)])
async def test_a_request_without_a_server_response_has_no_status(
    received: SensorOutput,
    traffic: EnvoyTraffic,
    green: Backend,
    client: aiohttp.ClientSession,
    mode: str,
    status: int,
) -> None:
    if mode == "gone":
        await green.__aexit__(None, None, None)
    else:
        green.mode = mode  # type: ignore[assignment]

    await asyncio.gather(*(ask(client, traffic.listen, stream=True) for _ in range(12)))
    await received.until_counted(24)

    failed = [request for request in received.requests if request.server == green.name]
    assert [(request.outcome, request.status) for request in failed] == [("failed", status)] * 12


@pytest.mark.smoke
@pytest.mark.usefixtures("sensor")
async def test_counts_mixed_load_as_the_client_sees_it(
    received: SensorOutput, traffic: EnvoyTraffic, green: Backend, client: aiohttp.ClientSession
) -> None:
    modes = ["ok", "ok", "ok", "500", "cut", "unfinished", "abort"] * 20
    answers = await asyncio.gather(
        *(ask(client, traffic.listen, headers={"x-mode": mode, "x-request-id": "same"}) for mode in modes)
    )

    await received.until_counted(len(modes))

    assert {outcome: count for (_, outcome), count in received.counts.items()} == {
        "ok": sum(answer.good for answer in answers) - 20,  # `abort` succeeds, too
        "failed": sum(answer.status == 500 for answer in answers),
        "truncated": sum(answer.status == 200 and not answer.whole for answer in answers),
        "aborted": 20,
    }
    assert {server for server, _ in received.counts} == {green.name}


@pytest.mark.usefixtures("sensor")
async def test_tells_clients_apart_and_takes_no_word_of_theirs_for_it(
    received: SensorOutput, traffic: EnvoyTraffic, green: Backend, client: aiohttp.ClientSession
) -> None:
    secret = "sk-" + "x" * 5000
    mine = {"authorization": f"Bearer {secret}", "x-session-id": "s1"}
    for headers in (mine, {"x-flettner-client": "1.2.3"}, {"x-api-key": secret, "x-mode": "500"}):
        await ask(client, traffic.listen, headers=headers)

    await received.until_counted(3)

    assert len({request.client for request in received.requests}) == 1  # one address
    assert None not in {request.client for request in received.requests}
    assert sorted(request.pinned for request in received.requests) == [False, False, True]
    noted = [headers["x-flettner-client"] for headers in green.headers]
    assert all(re.fullmatch(r"\d{1,2}(\.(\d{1,2}|-)){2}", buckets) for buckets in noted)
    assert "1.2.3" not in noted
    assert len(set(noted)) == 3


@pytest.mark.usefixtures("sensor")
async def test_records_tokens_and_times_per_attempt(
    received: SensorOutput, traffic: EnvoyTraffic, green: Backend, client: aiohttp.ClientSession
) -> None:
    green.chunks, green.gap_s = 25, 0.02

    before = utc_now().timestamp()
    answer = await ask(client, traffic.listen)
    after = utc_now().timestamp()
    await received.until_counted(1)

    (request,) = received.requests
    assert request.tokens == answer.events == 25
    assert request.request_bytes == len('{"prompt": "a", "stream": true}')
    assert request.began_s is not None
    assert before <= request.began_s <= after
    assert request.status == 200
    assert request.ttft_s is not None
    assert 0 < request.ttft_s < request.duration_s
    assert request.duration_s > 24 * 0.02


@pytest.mark.usefixtures("sensor")
async def test_reads_a_fragmented_response_and_takes_no_text_for_its_end(
    received: SensorOutput, traffic: EnvoyTraffic, green: Backend, client: aiohttp.ClientSession
) -> None:
    green.mode = "crumbs"

    answers = await asyncio.gather(*(ask(client, traffic.listen) for _ in range(5)))
    await received.until_counted(5)
    errors = await Admin(traffic.home / "admin.sock").stats("lua.*errors")

    assert {answer.good for answer in answers} == {True}
    assert received.counts == {(green.name, "ok"): 5}
    assert {request.tokens for request in received.requests} == {green.chunks}
    assert errors
    assert set(errors.values()) == {0}


@pytest.mark.usefixtures("sensor")
@pytest.mark.parametrize("first_byte", [False, True])
async def test_a_client_abort_is_no_server_failure(
    received: SensorOutput,
    traffic: EnvoyTraffic,
    green: Backend,
    client: aiohttp.ClientSession,
    first_byte: bool,
) -> None:
    green.mode, green.chunks, green.gap_s = ("ok" if first_byte else "hang"), 1000, 0.05
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask(client, traffic.listen)

    await received.until_counted(3)

    assert received.counts == {(green.name, "gave_up"): 3}


@pytest.mark.usefixtures("sensor")
async def test_a_client_that_disconnects_after_done_was_served(
    received: SensorOutput, traffic: EnvoyTraffic, green: Backend
) -> None:
    host, _, port = traffic.listen.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"stream": true}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)

    await reader.readuntil(b"[DONE]")
    writer.transport.abort()
    await received.until_counted(1)

    assert received.counts == {(green.name, "ok"): 1}


@pytest.mark.usefixtures("sensor")
async def test_counts_a_stream_without_a_first_byte_as_stalled_once_and_its_end(
    received: SensorOutput,
    traffic: EnvoyTraffic,
    blue: Backend,
    green: Backend,
    client: aiohttp.ClientSession,
) -> None:
    green.mode = "hang"
    asking = [asyncio.create_task(ask(client, traffic.listen)) for _ in range(4)]
    unstreamed = asyncio.create_task(ask(client, traffic.listen, stream=False))

    await received.until_counted(4)
    stalled = list(received.requests)
    for task in (*asking, unstreamed):
        task.cancel()
    await received.until_counted(9)
    await asyncio.sleep(0.4)

    assert [request.outcome for request in stalled] == ["stalled"] * 4
    assert min(request.duration_s for request in stalled) >= 1.0
    assert received.counts == {(green.name, "stalled"): 4, (green.name, "gave_up"): 5}
    assert sum(request.stalled for request in received.requests) == 4
    assert blue.served.total() == 0


@pytest.mark.usefixtures("sensor")
async def test_counts_only_inference_requests(
    received: SensorOutput, traffic: EnvoyTraffic, client: aiohttp.ClientSession
) -> None:
    for path in ("/v1/models", "/health", "/metrics", "/v1/chat/completions?x=1"):
        await ask(client, traffic.listen, path=path)

    await received.until_counted(1)
    await asyncio.sleep(0.4)

    assert len(received.requests) == 1


async def test_envoy_reconnects_to_a_restarted_daemon(
    received: SensorOutput, traffic: EnvoyTraffic, green: Backend, client: aiohttp.ClientSession
) -> None:
    for _ in range(2):
        before = len(received.requests)
        async with listening(ProxyRequests(every_s=0.1), received):
            await count_answers(client, traffic.listen, 5)
            await received.until_counted(before + 5)

    assert received.counts == {(green.name, "ok"): 10}


async def test_what_envoy_recorded_while_no_daemon_ran_does_not_count(
    received: SensorOutput, traffic: EnvoyTraffic, green: Backend, client: aiohttp.ClientSession
) -> None:
    sensor = ProxyRequests(every_s=0.1)
    async with listening(sensor, received, utc_now):
        await count_answers(client, traffic.listen, 5)
        await received.until_counted(5)
    await count_answers(client, traffic.listen, 7)
    await asyncio.sleep(2 * RECORD_CLOCK_S)

    async with listening(sensor, received, utc_now):
        await count_answers(client, traffic.listen, 3)
        await received.until_counted(8)
        await asyncio.sleep(1.0)  # while more could come

    assert received.counts == {(green.name, "ok"): 8}


@pytest.mark.usefixtures("sensor")
async def test_reports_a_dead_envoy_once(
    received: SensorOutput, traffic: EnvoyTraffic, client: aiohttp.ClientSession
) -> None:
    await count_answers(client, traffic.listen, 3)
    await received.until_counted(3)

    os.kill(int((traffic.home / "envoy.pid").read_text()), signal.SIGKILL)
    await received.until_state(("proxy_requests", True), ("proxy_requests", False))
    await asyncio.sleep(0.5)

    assert received.states == [("proxy_requests", True), ("proxy_requests", False)]


AT = int(utc_now().timestamp()) + 3600  # by the wall clock, and not before the sensor of any test


def record(**changed: object) -> dict[str, object]:
    fields = {"server": "chat-r1", "path": "/v1/completions", "code": 200, "flags": "-", "duration_ms": 12}
    return {**fields, "ttft_us": 300, "id": "a", "attempt": "1", **changed}


async def send(received: SensorOutput, data: bytes) -> None:
    """Send, and wait until the sensor closes the connection or a timeout."""
    path = received.state_dir.parent / "envoy" / "records.sock"

    async def exists() -> bool:
        return path.is_socket()

    await until(exists)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(data)
    try:
        async with asyncio.timeout(0.2):
            await reader.read()
    except (TimeoutError, ConnectionError):
        pass
    writer.close()


GARBAGE = {
    "not msgpack": b"\xc1\xc1\xc1",
    "a number": b"\x07",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "a huge length": b"\xdd" + struct.pack(">I", 1 << 31) + b"\x01",
    "a message of another shape": msgpack.packb({"tag": "us"}),
    "entries that are no entries": msgpack.packb(["chat/us", [7, None, [1]]]),
    "another tag": msgpack.packb(["chat/xx", [[AT, record()]]]),
    "missing fields": msgpack.packb(["chat/us", [[AT, {}]]]),
    "fields of other types": msgpack.packb(["chat/us", [[AT, record(code="many", ttft_us=[])]]]),
    "nan": msgpack.packb(["chat/us", [[AT, record(attempt=float("nan"))]]]),
    "a list as key": b"\x92\xa2us\x91\x92\x00\x81\x90\x01",
    "nested beyond reason": b"\x91" * 100_000,
}


@pytest.mark.usefixtures("sensor")
@pytest.mark.parametrize("garbage", list(GARBAGE.values()), ids=list(GARBAGE))
async def test_counts_invalid_records_reports_them_once_and_reads_the_rest(
    received: SensorOutput, garbage: bytes
) -> None:
    for _ in range(3):
        await send(received, garbage)
    await send(received, msgpack.packb(["chat/us", [[AT, record(code=500, new_field=1)]]]))

    await received.until_counted(1)

    async def is_counted() -> bool:
        return ("proxy_requests records", False) in received.states

    await until(is_counted)
    assert received.counts == {("chat-r1", "failed"): 1}
    assert received.states.count(("proxy_requests records", False)) == 1


@given(garbage=st.binary(max_size=60))
def test_the_sensor_survives_any_bytes(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    async def story() -> None:
        received = SensorOutput(tmp_path_factory.mktemp("s") / "chat")
        async with listening(ProxyRequests(every_s=0.1), received):
            path = received.state_dir.parent / "envoy" / "records.sock"
            while not path.is_socket():
                await asyncio.sleep(0)
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(garbage)
            writer.close()
            await asyncio.sleep(0.01)

    asyncio.run(story())


@pytest.mark.usefixtures("sensor")
async def test_reassembles_a_record_split_over_many_packets(received: SensorOutput) -> None:
    path = received.state_dir.parent / "envoy" / "records.sock"

    async def exists() -> bool:
        return path.is_socket()

    await until(exists)
    _, writer = await asyncio.open_unix_connection(path)
    for byte in msgpack.packb(["chat/us", [[AT, record(code=500)]]]):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)

    await received.until_counted(1)
    writer.close()

    assert received.states[0] == ("proxy_requests", True)


async def test_replaces_the_socket_of_a_dead_daemon_with_owner_only_access(received: SensorOutput) -> None:
    path = received.state_dir.parent / "envoy" / "records.sock"
    path.parent.mkdir()
    path.write_text("left behind")

    async def exists() -> bool:
        return path.is_socket()

    async with listening(ProxyRequests(every_s=0.1), received):
        await until(exists)
        assert path.stat().st_mode & 0o777 == 0o600


async def test_reports_a_socket_that_cannot_be_created_once(received: SensorOutput) -> None:
    received.state_dir = received.state_dir / ("d" * 120) / "chat"

    async with listening(ProxyRequests(every_s=0.1), received):
        await received.until_state(("proxy_requests", False))


@pytest.mark.parametrize(
    "options",
    [
        {"paths": ()},
        {"paths": ("v1",)},
        {"paths": [7]},
    ],
    ids=str,
)
def test_rejects_invalid_options(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ProxyRequests(**options)  # type: ignore[arg-type]
