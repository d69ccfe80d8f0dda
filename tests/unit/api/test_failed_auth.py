"""Failed authentication is reported at once, then in aggregate, and never with the credentials."""

import asyncio
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from flettner.agent.api import failed_auth
from flettner.agent.api.app import build_app
from flettner.agent.api.failed_auth import MAX_KINDS, OTHER, FailedAuthLog
from flettner.agent.api.tokens import Tokens, mint_token, store_tokens
from flettner.agent.audit.chain import verify
from flettner.agent.audit.history import History
from flettner.agent.audit.journal import Journal
from flettner.agent.domain.errors import JournalError
from flettner.agent.runtime.daemon import Daemon
from flettner.primitives.wall_clock import utc_now
from tests.support.fake_daemon_view import NOON, FakeDaemonView

HERE = "from 127.0.0.1"


async def test_reports_attempts_by_address_and_reason_but_never_the_token(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    late, line = mint_token(role="viewer", principal="ann", made_at=NOON, expires=NOON)
    store_tokens(tmp_path / "tokens", [line])
    tokens.reload()
    guessed = late[:-1] + ("A" if late[-1] != "A" else "B")
    sent = [
        None,
        "Bearer fl_00000000_" + "A" * 43,
        f"Bearer {guessed}",
        "Basic dXNlcjpwYXNz",
        f"Bearer {late}",
    ]

    with capture_logs() as logged:
        async with TestClient(TestServer(build_app(daemon, tokens))) as client:
            for credentials in sent:
                headers = {"Authorization": credentials} if credentials else {}
                async with client.get("/v1/targets", headers=headers) as response:
                    assert response.status == 401
            assert daemon.attempts == [{f"{HERE}, no token": 1}]

    assert daemon.attempts[1:] == [
        {f"{HERE}, an unknown token": 3, f"{HERE}, token {line.id}, which has expired": 1}
    ]
    reported = [entry["attempts"] for entry in logged if entry["event"] == "auth.failed"]
    assert reported == daemon.attempts
    assert late[-43:] not in str(logged)
    assert "dXNlcjpwYXNz" not in str(logged)


async def test_a_browser_that_opens_the_console_has_failed_nothing(
    daemon: FakeDaemonView, tokens: Tokens
) -> None:
    """It asks who looks at it, and then shows the sign-in. A token or another path is an attempt."""
    console = {"Flettner-Console": "1"}
    async with TestClient(TestServer(build_app(daemon, tokens))) as client:
        for _ in range(3):
            async with client.get("/v1/me", headers=console) as response:
                assert response.status == 401
        assert daemon.attempts == []

        for path, headers in (
            ("/v1/me", console | {"Authorization": "Bearer fl_00000000_" + "A" * 43}),
            ("/v1/targets", console),
            ("/v1/me", {}),
        ):
            async with client.get(path, headers=headers) as response:
                assert response.status == 401

    assert sum(sum(attempts.values()) for attempts in daemon.attempts) == 3


async def test_aggregates_a_flood_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_auth, "REPORT_EVERY_S", 0.05)
    reported: list[dict[str, int]] = []
    failures = FailedAuthLog(lambda attempts: reported.append(dict(attempts)))
    for number in range(1000):
        failures.record(f"10.0.{number // 250}.{number % 250}", "no token")
    async with asyncio.timeout(20):
        while len(reported) < 2:
            await asyncio.sleep(0.01)
        while failures._next_report is not None:
            await asyncio.sleep(0.01)

    assert [sum(attempts.values()) for attempts in reported] == [1, 999]
    assert len(reported[1]) == MAX_KINDS + 1
    assert reported[1][OTHER] == 999 - MAX_KINDS


async def test_an_unwritable_journal_grants_no_access(daemon: FakeDaemonView, tokens: Tokens) -> None:
    daemon.next_error = JournalError("No space left on device")

    with capture_logs() as logged:
        async with (
            TestClient(TestServer(build_app(daemon, tokens))) as client,
            client.get("/v1/targets") as response,
        ):
            assert response.status == 401

    assert [entry["event"] for entry in logged] == ["auth.failed", "auth.failed_unrecorded"]


def test_daemon_journals_failed_authentication(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "audit.jsonl", now=utc_now)
    live = Daemon(loops={}, journal=journal, history=History())

    live.report_failed_auth({f"{HERE}, no token": 2})
    journal.close()

    (record,) = Journal.open(tmp_path / "audit.jsonl", now=utc_now).after(0, 9)
    assert (record["action"], record["target"], record["state"]) == ("auth.failed", "", None)
    assert record["after"] == {"attempts": {f"{HERE}, no token": 2}}
    assert verify(tmp_path / "audit.jsonl").ok
