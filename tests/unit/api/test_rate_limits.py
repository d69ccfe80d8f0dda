"""Rate limits per caller, independent of other callers."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_network

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.agent.api.app import build_app
from flettner.agent.api.client_address import FORWARDED
from flettner.agent.api.middleware import ACCESS_CONTROL
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.rate_limits import AT_ONCE, CALLERS, PIECE, RateLimits
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Role
from tests.support.fake_daemon_view import FakeDaemonView


@dataclass
class Watch:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


def passes(limits: RateLimits, caller: str = "ann") -> bool:
    try:
        limits.spend(caller)
    except RequestRefusedError:
        return False
    return True


def test_allows_a_burst_and_then_the_rate() -> None:
    watch = Watch()
    limits = RateLimits(watch, per_s=2.0, burst=5.0)

    assert [passes(limits) for _ in range(7)] == [True] * 5 + [False] * 2
    watch.at += 1.0
    assert [passes(limits) for _ in range(3)] == [True, True, False]
    assert passes(limits, "bob")


@settings(deadline=None)
@given(st.lists(st.floats(0, 3) | st.just(0.0), max_size=60))
def test_never_exceeds_burst_plus_rate(pauses: list[float]) -> None:
    watch = Watch()
    limits, passed = RateLimits(watch, per_s=2.0, burst=5.0), 0
    for pause in pauses:
        watch.at += pause
        passed += passes(limits)

    assert passed <= 5.0 + 2.0 * sum(pauses) + 1e-6


def test_large_response_counts_as_several_requests() -> None:
    watch = Watch()
    limits = RateLimits(watch, per_s=2.0, burst=5.0)
    limits.spend("ann")
    limits.charge("ann", 10 * PIECE)

    assert not passes(limits)
    watch.at += 3.5
    assert [passes(limits) for _ in range(2)] == [True, False]
    assert passes(limits, "bob")


def test_bytes_that_are_paid_back_never_exceed_the_burst() -> None:
    watch = Watch()
    limits = RateLimits(watch, per_s=2.0, burst=5.0)
    limits.spend("ann")
    limits.charge("ann", 3 * PIECE)
    watch.at += 60.0
    limits.charge("ann", -3 * PIECE)

    assert [passes(limits) for _ in range(6)] == [True] * 5 + [False]


def test_tracked_callers_are_bounded() -> None:
    limits = RateLimits(Watch())
    for number in range(2 * CALLERS):
        limits.spend(f"from 10.0.{number // 256}.{number % 256}")

    assert len(limits._left) == CALLERS


def test_limits_concurrent_requests() -> None:
    limits = RateLimits(Watch(), at_once=1)
    with limits.turn("ann"):
        with limits.turn("bob"):
            pass
        with pytest.raises(RequestRefusedError), limits.turn("ann"):
            pass
    with limits.turn("ann"):
        pass

    assert limits._open == {}


async def test_rate_limited_client_gets_retry_after(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    app = build_app(daemon, tokens, limits=RateLimits(Watch(), per_s=0.1, burst=1.0, at_once=AT_ONCE))
    async with TestClient(TestServer(app)) as client:
        statuses = []
        for role in ("viewer", "viewer", "operator"):
            async with client.get("/v1/targets", headers=bearers[role]) as response:
                statuses.append((response.status, response.headers.get("Retry-After")))

        assert statuses == [(200, None), (429, "11"), (200, None)]


async def test_rate_limits_token_guessing_without_locking_out_valid_tokens(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    app = build_app(daemon, tokens, limits=RateLimits(Watch(), per_s=0.1, burst=2.0))
    async with TestClient(TestServer(app)) as client:
        statuses = []
        for number in range(4):
            guess = {"Authorization": f"Bearer fl_0000000{number}_" + "A" * 43}
            async with client.get("/v1/targets", headers=guess) as response:
                statuses.append(response.status)
        async with client.get("/v1/targets", headers=bearers["viewer"]) as response:
            statuses.append(response.status)
        async with client.get("/healthz") as response:
            statuses.append(response.status)

    assert statuses == [401, 401, 429, 429, 200, 200]


def test_a_look_at_the_limit_takes_nothing() -> None:
    watch = Watch()
    limits = RateLimits(watch, per_s=2.0, burst=2.0)
    limits.check("ann")
    assert [passes(limits) for _ in range(3)] == [True, True, False]
    with pytest.raises(RequestRefusedError):
        limits.check("ann")
    limits.check("bob")
    watch.at += 0.5
    limits.check("ann")

    assert [passes(limits) for _ in range(2)] == [True, False]


async def test_requests_of_strangers_that_wait_leave_room_for_others(
    daemon: FakeDaemonView,
    tokens: Tokens,
    bearers: dict[Role, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bodies that never arrive, of decisions that nobody has signed."""
    monkeypatch.setattr("flettner.agent.api.middleware.STRANGERS_AT_ONCE", 3)
    limits = RateLimits(Watch(), at_once=2)
    app = build_app(daemon, tokens, limits=limits, trusted_proxies=[ip_network("127.0.0.1")])
    open_ones = ExitStack()
    async with TestClient(TestServer(app)) as client:

        async def status(of: str) -> int:
            headers = {FORWARDED: f"203.0.113.{of}"}
            async with client.post("/v1/decisions/ops", data=b"x", headers=headers) as answer:
                return answer.status

        async def begin(of: str) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", client.port)
            open_ones.callback(writer.close)
            head = f"POST /v1/decisions/ops HTTP/1.1\r\nHost: localhost\r\n{FORWARDED}: 203.0.113.{of}\r\n"
            writer.write(f"{head}Content-Length: 9\r\n\r\n".encode())

        strangers = app[ACCESS_CONTROL]._strangers._open

        async def waiting(number: int) -> None:
            async with asyncio.timeout(60):
                while strangers.get("everybody", 0) != number:
                    await asyncio.sleep(0.01)

        await begin("1")
        await begin("1")
        await waiting(2)
        assert [await status(of) for of in ("1", "3")] == [429, 401]
        await begin("2")
        await waiting(3)
        assert await status("3") == 429
        async with client.get("/v1/targets", headers=bearers["viewer"]) as known:
            assert known.status == 200
        open_ones.close()
        await waiting(0)
        assert await status("3") == 401
