"""Who could not come in is told: the first at once, the rest in bulk, and never with what was sent."""

import asyncio
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from agent.api import failed_auth
from agent.api.app import build_app
from agent.api.failed_auth import MOST, OTHERS, FailedAuthLog
from agent.api.tokens import Tokens, mint, store
from agent.audit.chain import verify
from agent.audit.history import History
from agent.audit.journal import Journal
from agent.domain.errors import JournalError
from agent.runtime.daemon import Daemon
from tests.support.fake_daemon_view import NOON, FakeDaemonView

HERE = "from 127.0.0.1"


async def test_attempts_are_told_by_address_and_reason_and_no_token_is(
    desk: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    late, line = mint(role="viewer", principal="ann", made_at=NOON, expires=NOON)
    store(tmp_path / "tokens", [line])
    tokens.reload()
    guessed = late[:-1] + ("A" if late[-1] != "A" else "B")
    sent = [
        None,
        "Bearer tt_00000000_" + "A" * 43,
        f"Bearer {guessed}",
        "Basic dXNlcjpwYXNz",
        f"Bearer {late}",
    ]

    with capture_logs() as logged:
        async with TestClient(TestServer(build_app(desk, tokens))) as client:
            for one in sent:
                headers = {"Authorization": one} if one else {}
                async with client.get("/v1/targets", headers=headers) as response:
                    assert response.status == 401
            assert desk.attempts == [{f"{HERE}, no token": 1}]

    assert desk.attempts[1:] == [
        {f"{HERE}, an unknown token": 3, f"{HERE}, token {line.id}, which has expired": 1}
    ]
    told = [entry["attempts"] for entry in logged if entry["event"] == "auth.failed"]
    assert told == desk.attempts
    assert late[-43:] not in str(logged)
    assert "dXNlcjpwYXNz" not in str(logged)


async def test_so_many_attempts_are_told_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_auth, "EVERY_S", 0.05)
    told: list[dict[str, int]] = []
    door = FailedAuthLog(lambda attempts: told.append(dict(attempts)))
    for number in range(1000):
        door.came(f"10.0.{number // 250}.{number % 250}", "no token")
    async with asyncio.timeout(20):
        while len(told) < 2:
            await asyncio.sleep(0.01)
        while door._quiet is not None:
            await asyncio.sleep(0.01)

    assert [sum(attempts.values()) for attempts in told] == [1, 999]
    assert len(told[1]) == MOST + 1
    assert told[1][OTHERS] == 999 - MOST


async def test_a_journal_that_cannot_be_written_lets_nobody_in(desk: FakeDaemonView, tokens: Tokens) -> None:
    desk.next_error = JournalError("No space left on device")

    with capture_logs() as logged:
        async with (
            TestClient(TestServer(build_app(desk, tokens))) as client,
            client.get("/v1/targets") as response,
        ):
            assert response.status == 401

    assert [entry["event"] for entry in logged] == ["auth.failed", "auth.failed_unrecorded"]


def test_the_daemon_writes_them_down(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON)
    daemon = Daemon(loops={}, journal=journal, history=History())

    daemon.strangers({f"{HERE}, no token": 2})
    journal.close()

    (record,) = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON).after(0, 9)
    assert (record["action"], record["target"], record["state"]) == ("auth.failed", "", None)
    assert record["after"] == {"attempts": {f"{HERE}, no token": 2}}
    assert verify(tmp_path / "audit.jsonl").ok
