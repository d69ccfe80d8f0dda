"""The console's files: public, from one origin, small."""

import gzip
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import build_app
from flettner.agent.api.routes.console import pages
from flettner.agent.api.tokens import Tokens
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, bearers, daemon, tokens

__all__ = ["bearers", "daemon", "tokens"]  # fixtures


@pytest.fixture
async def visitor(daemon: FakeDaemonView, tokens: Tokens) -> AsyncIterator[Client]:
    """A client without a token."""
    app = build_app(daemon, tokens, pages=pages(), heartbeat_s=0.05)
    async with TestClient(TestServer(app), auto_decompress=False) as client:
        yield client


async def test_serves_every_file_without_a_token(visitor: Client) -> None:
    for page in pages():
        async with visitor.get(page.path) as response:
            assert response.status == 200
            assert response.charset == "utf-8"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]


async def test_does_not_send_an_unchanged_file_again(visitor: Client) -> None:
    async with visitor.get("/") as response:
        tag = response.headers["ETag"]
    async with visitor.get("/", headers={"If-None-Match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")
    async with visitor.get("/", headers={"If-None-Match": '"another"'}) as response:
        assert response.status == 200


async def test_compresses_files_for_clients_that_accept_it(visitor: Client) -> None:
    async with visitor.get("/", headers={"Accept-Encoding": "gzip, br"}) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        packed = await response.read()
    async with visitor.get("/", headers={"Accept-Encoding": "identity"}) as response:
        assert "Content-Encoding" not in response.headers
        assert await response.read() == gzip.decompress(packed)


@pytest.mark.parametrize(
    "path",
    ["/assets/", "/assets/../__init__.py", "/assets/%2e%2e/__init__.py", "/index.html", "/__init__.py"],
)
async def test_serves_no_other_file(visitor: Client, path: str) -> None:
    async with visitor.get(path) as response:
        assert response.status == 401


async def test_reports_the_identity_of_the_caller(
    visitor: Client, bearers: dict[str, dict[str, str]]
) -> None:
    async with visitor.get("/v1/me", headers=bearers["viewer"]) as response:
        me = await response.json()

    assert (me["principal"], me["role"], me["targets"]) == ("viewer ann", "viewer", None)


async def test_a_brief_audit_omits_state_and_effects(
    visitor: Client, daemon: FakeDaemonView, bearers: dict[str, dict[str, str]]
) -> None:
    daemon._records.append({"seq": 1, "action": "a", "state": {"large": "x"}, "effects": [1]})
    async with visitor.get("/v1/audit?brief=true", headers=bearers["viewer"]) as response:
        brief = await response.json()
    async with visitor.get("/v1/audit", headers=bearers["viewer"]) as response:
        whole = await response.json()

    assert brief["records"] == [{"seq": 1, "action": "a"}]
    assert whole["records"] == [{"seq": 1, "action": "a", "state": {"large": "x"}, "effects": [1]}]
