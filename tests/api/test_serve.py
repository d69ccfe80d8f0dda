"""Where the API listens, and what is said when it cannot."""

import stat
from pathlib import Path

import pytest
from aiohttp import ClientSession, UnixConnector
from structlog.testing import capture_logs

from agent.api.app import build_app, serve
from agent.api.tokens import Tokens
from agent.errors import ConfigError
from tests.api.conftest import Client
from tests.fake_desk import FakeDesk


async def test_it_listens_on_a_unix_socket_for_its_group(
    desk: FakeDesk, tokens: Tokens, tmp_path: Path
) -> None:
    path = tmp_path / "api.sock"
    runner = await serve(build_app(desk, tokens), f"unix:{path}")

    async with ClientSession(connector=UnixConnector(str(path))) as session:
        async with session.get("http://any.name/healthz") as health:
            assert health.status == 200
        async with session.get("http://any.name/v1/targets") as targets:
            assert targets.status == 401
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await runner.cleanup()


async def test_it_takes_the_place_of_a_socket_that_nobody_answers(
    desk: FakeDesk, tokens: Tokens, tmp_path: Path
) -> None:
    path = tmp_path / "api.sock"
    first = await serve(build_app(desk, tokens), f"unix:{path}")
    with pytest.raises(ConfigError, match="another process listens there"):
        await serve(build_app(desk, tokens), f"unix:{path}")
    await first.cleanup()

    second = await serve(build_app(desk, tokens), f"unix:{path}")

    await second.cleanup()


async def test_a_taken_port_is_named(desk: FakeDesk, tokens: Tokens, client: Client) -> None:
    with pytest.raises(ConfigError, match="already in use"):
        await serve(build_app(desk, tokens), f"127.0.0.1:{client.port}")


@pytest.mark.parametrize(
    "listen", ["", "8090", ":8090", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "unix:a.sock"]
)
async def test_an_address_that_cannot_be_read_is_refused(desk: FakeDesk, tokens: Tokens, listen: str) -> None:
    with pytest.raises(ConfigError, match=r"\[api\] listen"):
        await serve(build_app(desk, tokens), listen)


async def test_a_file_is_not_overwritten_by_a_socket(desk: FakeDesk, tokens: Tokens, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")

    with pytest.raises(ConfigError, match="no socket"):
        await serve(build_app(desk, tokens), f"unix:{tmp_path / 'notes'}")

    assert (tmp_path / "notes").read_text() == "mine"


async def test_a_bug_answers_a_problem_and_tells_nothing(desk: FakeDesk, client: Client) -> None:
    del desk._states

    async with client.get("/v1/targets") as response:
        text = await response.text()

    assert response.status == 500
    assert "_states" not in text
    assert response.content_type == "application/problem+json"


async def test_what_is_not_ready_says_so(desk: FakeDesk, client: Client) -> None:
    desk.is_ready = False

    async with client.get("/readyz") as response:
        assert response.status == 503
    async with client.get("/healthz") as response:
        assert response.status == 200


async def test_an_address_that_others_can_reach_is_warned_about(desk: FakeDesk, tokens: Tokens) -> None:
    with capture_logs() as logged:
        runner = await serve(build_app(desk, tokens), "0.0.0.0:0")
        await runner.cleanup()

    assert [entry["event"] for entry in logged] == ["api.exposed"]
