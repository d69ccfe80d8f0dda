"""Callers with tokens that another service knows."""

import asyncio
from collections.abc import Mapping
from ipaddress import ip_network

import pytest
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from flettner.agent.api.app import build_app
from flettner.agent.api.client_address import FORWARDED
from flettner.agent.api.external_tokens import (
    AWAY_S,
    FRESH_S,
    MOST_KEPT,
    MOST_REVIEWS,
    REFUSED_S,
    ExternalTokens,
    IdentifiedCaller,
    ReviewError,
)
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import LONGEST_NAME, Role
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import with_key


class FakeService:
    """Knows tokens by text; `away`: it does not answer."""

    def __init__(self, **callers: IdentifiedCaller) -> None:
        self.callers, self.away = callers, False
        self.received: list[str] = []
        self.waits_for: dict[str, asyncio.Event] = {}

    async def identify(self, token: str) -> IdentifiedCaller | None:
        self.received.append(token)
        if token in self.waits_for:
            await self.waits_for[token].wait()
        if self.away:
            raise ReviewError("the service does not answer")
        return self.callers.get(token)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


ANN = IdentifiedCaller(name="ann@example.com", role="operator")


def made(service: FakeService) -> tuple[ExternalTokens, Clock]:
    clock = Clock()
    return ExternalTokens({"review": service}, clock), clock


async def test_an_answer_is_kept_for_some_seconds() -> None:
    service = FakeService(good=ANN)
    tokens, clock = made(service)

    holder = await tokens.holder("good")
    for _ in range(3):
        assert await tokens.holder("good") == holder
        assert await tokens.holder("bad") is None
    assert holder
    assert (holder.principal, holder.role) == ("review ann@example.com", "operator")
    assert service.received == ["good", "bad"]

    service.callers.clear()
    clock.now = REFUSED_S
    assert await tokens.holder("good")
    clock.now = FRESH_S
    assert await tokens.holder("good") is None


async def test_an_accepted_token_outlasts_a_short_absence_of_the_service() -> None:
    service = FakeService(good=ANN)
    tokens, clock = made(service)
    await tokens.holder("good")
    service.away = True

    with pytest.raises(ReviewError):
        await tokens.holder("new")
    clock.now = AWAY_S - 1
    assert await tokens.holder("good")
    clock.now = AWAY_S
    with pytest.raises(ReviewError):
        await tokens.holder("good")


@pytest.mark.parametrize("text", ["", "fl_0123abcd_" + "a" * 43, "x" * 20_000, "schlüssel"])
async def test_what_cannot_be_such_a_token_is_not_sent_away(text: str) -> None:
    service = FakeService()
    tokens, _ = made(service)

    assert await tokens.holder(text) is None
    assert service.received == []


async def test_a_flood_of_tokens_takes_bounded_memory() -> None:
    service = FakeService(good=ANN)
    tokens, _ = made(service)
    await tokens.holder("good")

    for number in range(MOST_KEPT + 10):
        await tokens.holder(f"token {number}")

    assert (len(tokens._refused), len(tokens._accepted)) == (MOST_KEPT, 1)
    assert await tokens.holder("good")
    assert service.received.count("good") == 1  # the flood displaced it not


async def test_strangers_who_wait_for_a_slow_service_delay_nobody_known() -> None:
    service, slow = FakeService(good=ANN), asyncio.Event()
    tokens, clock = made(service)
    await tokens.holder("good")
    clock.now = FRESH_S
    service.waits_for = {f"token {number}": slow for number in range(2 * MOST_REVIEWS)}
    waiting = [asyncio.create_task(tokens.holder(text)) for text in service.waits_for]
    await asyncio.sleep(0)

    assert await tokens.holder("good")

    slow.set()
    assert await asyncio.gather(*waiting) == [None] * len(waiting)


async def test_a_flood_of_tokens_reaches_the_service_in_bounded_numbers(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    service = FakeService(good=ANN)
    app = build_app(
        daemon,
        tokens,
        authenticators={"review": service},
        limits=RateLimits(lambda: 0.0, burst=20.0),
        trusted_proxies=[ip_network("127.0.0.1")],
    )
    flood, other = ({FORWARDED: f"203.0.113.{number}"} for number in (66, 7))
    good = {"Authorization": "Bearer good"}

    async with TestClient(TestServer(app)) as client:

        async def status(headers: Mapping[str, str]) -> int:
            async with client.get("/v1/targets", headers=headers) as answer:
                return answer.status

        assert await status(good) == 200
        for away in (False, True):
            service.away = away
            for number in range(20):
                await status(flood | {"Authorization": f"Bearer {away} {number}"})
        service.away = False

        assert len(service.received) == 21
        assert await status(flood | {"Authorization": "Bearer another"}) == 429
        assert [await status(flood | headers) for headers in (good, bearers["viewer"])] == [200, 200]
        assert await status(other | {"Authorization": "Bearer wrong"}) == 401


async def test_a_service_that_is_away_is_one_line_in_the_log(daemon: FakeDaemonView, tokens: Tokens) -> None:
    service = FakeService()
    service.away = True
    with capture_logs() as logged:
        server = TestServer(build_app(daemon, tokens, authenticators={"review": service}))
        async with TestClient(server) as client:
            for number in range(20):
                async with client.get("/v1/me", headers={"Authorization": f"Bearer {number}"}) as answer:
                    assert answer.status == 503

    assert [entry["event"] for entry in logged].count("api.token_not_reviewed") == 1


async def test_long_names_stay_unique_and_short() -> None:
    first, second = ("n" * 150 + end for end in "ab")
    service = FakeService(
        a=IdentifiedCaller(name=first, role="viewer"), b=IdentifiedCaller(name=second, role="viewer")
    )
    tokens, _ = made(service)

    holders = [await tokens.holder(text) for text in "ab"]

    names = {holder.principal for holder in holders if holder}
    assert len(names) == 2
    assert all(len(name.encode()) <= LONGEST_NAME for name in names)


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 200)])
async def test_the_role_decides_and_the_journal_names_the_user(
    daemon: FakeDaemonView, tokens: Tokens, role: Role, status: int
) -> None:
    service = FakeService(good=IdentifiedCaller(name="ann@example.com", role=role))
    server = TestServer(build_app(daemon, tokens, authenticators={"review": service}))
    headers = {"Authorization": "Bearer good"}

    async with TestClient(server, headers=headers, middlewares=[with_key]) as client:
        async with client.get("/v1/targets") as listed:
            assert listed.status == 200
        async with client.post("/v1/targets/chat/pause", json={"reason": "a test"}) as paused:
            assert paused.status == status

    named = "paused by review ann@example.com" in daemon.targets()["chat"].state.note
    assert named == (status == 200)


async def test_tokens_of_the_file_work_while_the_service_is_away(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    service = FakeService()
    service.away = True
    server = TestServer(build_app(daemon, tokens, authenticators={"review": service}))

    async with TestClient(server) as client:
        async with client.get("/v1/targets", headers=bearers["viewer"]) as listed:
            assert listed.status == 200
        async with client.get("/v1/targets", headers={"Authorization": "Bearer new"}) as unknown:
            assert unknown.status == 503
            assert (await unknown.json())["type"].endswith("token-not-reviewed")
