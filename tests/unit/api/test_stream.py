"""The journal as events that a reader can resume."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError, ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api import rate_limits
from flettner.agent.api.app import build_app
from flettner.agent.api.routes import events as routes
from flettner.agent.api.tokens import Tokens
from flettner.agent.audit.offsets import SLICE_BYTES
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import JournalError
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client


async def events(response: ClientResponse, count: int) -> list[tuple[int, str]]:
    """Return (id, event of the record) of the next `count` events without heartbeats."""
    received: list[tuple[int, str]] = []
    async with asyncio.timeout(20):
        while len(received) < count:
            line = (await response.content.readline()).decode().rstrip("\n")
            if line.startswith("id: "):
                data = (await response.content.readline()).decode().removeprefix("data: ")
                received.append((int(line.removeprefix("id: ")), json.loads(data)["event"]))
    return received


async def until_followed(daemon: FakeDaemonView, followers: int = 1) -> None:
    async with asyncio.timeout(20):
        while daemon.followers != followers:
            await asyncio.sleep(0.01)


async def test_new_reader_receives_only_new_events(client: Client, daemon: FakeDaemonView) -> None:
    daemon.record("old")
    async with client.get("/v1/events") as response:
        await until_followed(daemon)
        daemon.record("new")

        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert await events(response, 1) == [(2, "new")]


async def test_reconnecting_reader_receives_missed_events_once(
    client: Client, daemon: FakeDaemonView
) -> None:
    for number in range(1, 4):
        daemon.record(f"e{number}")
    async with client.get("/v1/events", headers={"Last-Event-ID": "1"}) as response:
        await until_followed(daemon)
        daemon.record("e4")
        daemon.record("e5")

        assert await events(response, 4) == [(2, "e2"), (3, "e3"), (4, "e4"), (5, "e5")]


async def test_replays_several_slices_of_missed_events(client: Client, daemon: FakeDaemonView) -> None:
    count = routes.MOST_MISSED
    for number in range(count):
        daemon.record(f"e{number}")

    async with client.get("/v1/events", headers={"Last-Event-ID": "0"}) as response:
        assert [seq for seq, _ in await events(response, count)] == list(range(1, count + 1))


@pytest.mark.parametrize("last", [0, 7], ids=["too far back", "of another journal"])
async def test_reader_with_too_many_missed_events_receives_a_reset(
    client: Client, daemon: FakeDaemonView, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    monkeypatch.setattr(routes, "MOST_MISSED", 4)
    for number in range(1, 6):
        daemon.record(f"e{number}")
    async with client.get("/v1/events", headers={"Last-Event-ID": str(last)}) as response:
        async with asyncio.timeout(20):
            while (line := await response.content.readline()) != b"event: reset\n":
                assert not line.startswith(b"data")
            body = [await response.content.readline() for _ in range(3)]
        daemon.record("e6")

        assert body == [b"id: 5\n", b'data: {"head":5}\n', b"\n"]
        assert await events(response, 1) == [(6, "e6")]


async def test_replay_in_slices_yields_to_other_requests(client: Client, daemon: FakeDaemonView) -> None:
    for _ in range(200):
        daemon.record("x" * 2000)
    daemon.reads.clear()
    async with client.get("/v1/events", headers={"Last-Event-ID": "0"}) as response:
        await events(response, 200)

    assert sum(daemon.reads) == 200
    assert max(daemon.reads) <= SLICE_BYTES // 2000


async def test_stream_counts_against_the_rate_limit(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    for _ in range(40):
        daemon.record("x" * rate_limits.PIECE)
    watch = [0.0]
    bounded = rate_limits.RateLimits(lambda: watch[0], per_s=50.0, burst=10.0)
    app = build_app(daemon, tokens, limits=bounded, heartbeat_s=0.05)
    async with (
        TestClient(TestServer(app), headers=bearers["viewer"]) as client,
        client.get("/v1/events", headers={"Last-Event-ID": "0"}) as response,
    ):
        await events(response, 40)
        async with client.get("/v1/targets") as refused:
            assert refused.status == 429
        watch[0] += 1.0
        async with client.get("/v1/targets") as answered:
            assert answered.status == 200


async def test_revoked_token_ends_a_long_replay(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]], tmp_path: Path
) -> None:
    for _ in range(500):
        daemon.record("x" * rate_limits.PIECE)
    bounded = rate_limits.RateLimits(lambda: 0.0, per_s=10_000.0, burst=2.0)
    async with (
        TestClient(
            TestServer(build_app(daemon, tokens, limits=bounded)), headers=bearers["viewer"]
        ) as client,
        client.get("/v1/events", headers={"Last-Event-ID": "0"}) as response,
        asyncio.timeout(20),
    ):
        await events(response, 1)
        (tmp_path / "tokens").write_text("")
        tokens.reload()
        rest = await response.content.read()

    assert rest.count(b"id: ") < 499


async def test_idle_stream_sends_heartbeats(client: Client) -> None:
    async with client.get("/v1/events") as response, asyncio.timeout(20):
        while not (await response.content.readline()).startswith(b": "):
            pass


async def test_removes_a_disconnected_reader(client: Client, daemon: FakeDaemonView) -> None:
    async with client.get("/v1/events"):
        await until_followed(daemon)

    await until_followed(daemon, 0)


async def test_revoked_token_ends_its_stream(client: Client, tokens: Tokens, tmp_path: Path) -> None:
    async with client.get("/v1/events") as response, asyncio.timeout(20):
        (tmp_path / "tokens").write_text("")
        tokens.reload()

        assert (await response.content.read()).endswith(b"\n\n")


@pytest.mark.parametrize("rights", [{}, {"targets": ["embed"]}], ids=["revoked", "narrowed"])
async def test_no_record_is_sent_after_a_token_lost_rights(
    daemon: FakeDaemonView,
    tokens: Tokens,
    bearers: dict[Role, dict[str, str]],
    tmp_path: Path,
    rights: dict[str, object],
) -> None:
    app = build_app(daemon, tokens, heartbeat_s=60.0)  # the stream waits for a record, not for a heartbeat
    async with (
        TestClient(TestServer(app), headers=bearers["viewer"]) as client,
        client.get("/v1/events") as response,
    ):
        await until_followed(daemon)
        daemon.record("before")
        assert await events(response, 1) == [(1, "before")]
        await asyncio.sleep(0.05)
        lines = [json.loads(line) | rights for line in (tmp_path / "tokens").read_text().splitlines()]
        (tmp_path / "tokens").write_text("".join(json.dumps(line) + "\n" for line in lines if rights))
        tokens.reload()
        daemon.record("after")
        async with asyncio.timeout(20):
            rest = await response.content.read()

    assert b"after" not in rest


async def test_streams_end_on_shutdown(client: Client, daemon: FakeDaemonView) -> None:
    async with client.get("/v1/events") as response, asyncio.timeout(20):
        await until_followed(daemon)
        closing = asyncio.create_task(client.server.close())

        await response.content.read()
        await closing
    assert daemon.followers == 0


async def test_an_unreadable_journal_ends_the_stream(client: Client, daemon: FakeDaemonView) -> None:
    daemon.record("e1")
    daemon.next_error = JournalError("audit.jsonl: Input/output error")
    async with client.get("/v1/events", headers={"Last-Event-ID": "0"}) as response, asyncio.timeout(20):
        assert (response.status, await response.content.read()) == (200, b"retry: 2000\n\n")


async def test_internal_error_in_a_stream_closes_it(client: Client, daemon: FakeDaemonView) -> None:
    async with client.get("/v1/events") as response, asyncio.timeout(20):
        await until_followed(daemon)
        for queue in daemon._followers:
            queue.put_nowait({"no": "seq"})

        with pytest.raises(ClientPayloadError):
            await response.content.read()


async def test_limits_open_streams(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]]
) -> None:
    opened = [
        await client.get("/v1/events", headers=bearers[role])
        for role in ("viewer", "admin")
        for _ in range(routes.STREAMS // 2)
    ]
    await until_followed(daemon, routes.STREAMS)

    async with client.get("/v1/events") as response:
        assert response.status == 503
    for stream in opened:
        stream.close()


async def test_limits_open_streams_per_token(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]]
) -> None:
    opened = [await client.get("/v1/events", headers=bearers["viewer"]) for _ in range(rate_limits.AT_ONCE)]
    await until_followed(daemon, rate_limits.AT_ONCE)

    async with client.get("/v1/events", headers=bearers["viewer"]) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "2")
    async with client.get("/v1/events") as response:
        assert response.status == 200
    for stream in opened:
        stream.close()


@pytest.mark.parametrize("sent", ["x", "-1", "1.5", "9" * 30, "٣"])
async def test_refuses_an_invalid_last_event_id(client: Client, sent: str) -> None:
    async with client.get("/v1/events", headers={"Last-Event-ID": sent}) as response:
        assert response.status == 422
