"""Errors of the HTTP layer repeat nothing of the request and name no library."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp import web

from flettner.agent.api.app import build_app
from flettner.agent.api.problems import MEDIA, Problem
from flettner.agent.api.seldom_log import SeldomLog
from flettner.agent.api.server import serve
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Role
from flettner.primitives.address import Address
from tests.support.daemon_log import daemon_log
from tests.support.fake_daemon_view import FakeDaemonView

HEAD = "GET /v1/targets HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n"
MALFORMED = {
    "a control character in a token": "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: {bearer}\x00\r\n\r\n",
    "a token as the name of a header": "GET /v1/targets HTTP/1.1\r\nHost: a\r\n{bearer}\r\n\r\n",
    "a token in the request line": "GET /v1/targets?{bearer} HTTP/1.1\r\nHost: a\r\n\r\n",
    "a token as the method": "{bearer} / HTTP/1.1\r\n\r\n",
    "a long header": HEAD + "X: " + "x" * 9000 + "\r\n\r\n",
    "too many headers": HEAD + "X: {bearer}\r\n" * 70 + "\r\n",
    "two lengths": HEAD + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "TLS": "\x16\x03\x01\x02{bearer}\r\n\r\n",
}


@pytest.fixture
async def runner(daemon: FakeDaemonView, tokens: Tokens) -> AsyncIterator[web.AppRunner]:
    runner = await serve(build_app(daemon, tokens), Address("127.0.0.1", 0))
    yield runner
    await runner.cleanup()


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    with daemon_log() as log:
        yield log


async def answered(runner: web.AppRunner, text: str) -> tuple[str, bytes]:
    """Return head and body of the answer to a raw request, read until the daemon closes the connection."""
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    writer.write(text.encode(errors="surrogateescape"))
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.decode(), body


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_malformed_request_is_answered_and_logged_without_its_content(
    runner: web.AppRunner, bearers: dict[Role, dict[str, str]], written: io.StringIO, kind: str
) -> None:
    bearer = bearers["admin"]["Authorization"]

    head, body = await answered(runner, MALFORMED[kind].replace("{bearer}", bearer))

    assert head.split()[1] == "400"
    assert f"Content-Type: {MEDIA}" in head
    assert "Server: flettner\r\n" in f"{head}\r\n"
    assert Problem.model_validate_json(body).status == 400
    log = written.getvalue()
    assert log.count("\n") == 1
    assert "api.malformed_request" in log
    for text in (head, body.decode(), log):
        assert bearer.removeprefix("Bearer ") not in text
        assert aiohttp.__version__ not in text


@pytest.mark.parametrize(
    ("header", "body", "lines"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: 9", "PLANTED!!", 0),
        ("Content-Encoding: deflate\r\nContent-Length: 9", "PLANTED!!", 0),
        ("Transfer-Encoding: chunked", "9\r\nPLANTED!!\r\nPLANTED\r\n", 1),
    ],
)
async def test_a_malformed_body_that_nobody_reads_leaves_no_traceback(
    runner: web.AppRunner, written: io.StringIO, header: str, body: str, lines: int
) -> None:
    for _ in range(3):
        head, _ = await answered(
            runner,
            f"POST /v1/targets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n{body}",
        )
        assert head.split()[1] in {"400", "401"}

    log = written.getvalue()
    assert ("Traceback" in log, "PLANTED" in log) == (False, False)
    assert log.count("api.malformed_request") == lines


async def test_a_flood_of_malformed_requests_is_one_line_in_the_log(
    runner: web.AppRunner, written: io.StringIO
) -> None:
    for _ in range(20):
        await answered(runner, MALFORMED["TLS"])

    assert written.getvalue().count("api.malformed_request") == 1


def test_later_malformed_requests_are_logged_with_their_number(written: io.StringIO) -> None:
    now_s = iter([0.0, 0.0, 1.0, 9.0, 10.0, 10.0, 11.0])
    malformed = SeldomLog("api.malformed_request", clock=lambda: next(now_s))

    for _ in range(5):
        malformed.warn(peer="127.0.0.1", problem="BadStatusLine")

    assert written.getvalue().count("\n") == 2
    assert '"requests": 3' in written.getvalue()


async def test_an_expectation_of_bytes_that_are_no_text_leaves_no_traceback(
    runner: web.AppRunner, written: io.StringIO
) -> None:
    head, body = await answered(
        runner, "GET /nothing HTTP/1.1\r\nHost: localhost\r\nExpect: PLANTED\udcff\r\n\r\n"
    )

    assert (head.split()[1], Problem.model_validate_json(body).status) == ("400", 400)
    assert ("Traceback" in written.getvalue(), "PLANTED" in written.getvalue()) == (False, False)


async def test_an_unknown_expectation_at_an_unknown_address_is_not_repeated(runner: web.AppRunner) -> None:
    text = "GET /nothing HTTP/1.1\r\nHost: localhost\r\nExpect: fl_secret\r\nConnection: close\r\n\r\n"

    head, body = await answered(runner, text)

    assert Problem.model_validate_json(body).status == 417
    assert b"fl_secret" not in body
    assert "Server: flettner\r\n" in f"{head}\r\n"
