from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from flettner.agent.api.app import build_app
from flettner.agent.api.idempotency import HEADER
from flettner.agent.api.problems import MEDIA
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Role
from tests.support.api_tokens import ROLES, store_roles
from tests.support.fake_daemon_view import FakeDaemonView

Client = TestClient[Request, Application]


async def with_key(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Client middleware that sends a fresh Idempotency-Key with each request."""
    if request.method == "POST" and HEADER not in request.headers:
        request.headers[HEADER] = uuid4().hex
    return await handler(request)


async def get(client: Client, path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the document at the path."""
    async with client.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def post(client: Client, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Return the status, and the document or the problem."""
    async with client.post(path, json=body) as response:
        content_type = MEDIA if response.status >= 400 else "application/json"
        answer: dict[str, Any] = await response.json(content_type=content_type)
        return response.status, answer


@pytest.fixture
def daemon() -> FakeDaemonView:
    return FakeDaemonView()


@pytest.fixture
def bearers(tmp_path: Path) -> dict[Role, dict[str, str]]:
    """Authorization header per role; the tokens file is `tokens` in tmp_path."""
    texts = store_roles(tmp_path / "tokens")
    return {role: {"Authorization": f"Bearer {text}"} for role, text in texts.items()}


@pytest.fixture
def tokens(tmp_path: Path, bearers: dict[Role, dict[str, str]], daemon: FakeDaemonView) -> Tokens:
    assert set(bearers) == set(ROLES)
    return Tokens(tmp_path / "tokens", daemon.now)


@pytest.fixture
async def client(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> AsyncIterator[Client]:
    """A client with an operator's token."""
    server = TestServer(build_app(daemon, tokens, heartbeat_s=0.05))
    async with TestClient(server, headers=bearers["operator"], middlewares=[with_key]) as client:
        yield client
