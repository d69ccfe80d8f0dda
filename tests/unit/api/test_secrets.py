"""Tokens appear in no log and no response, even if a request fails."""

import io
from collections.abc import Iterator

import pytest

from flettner.agent.api.app import OPERATIONS
from flettner.agent.api.tokens import Tokens, mint_token
from flettner.agent.config.listen import Role
from flettner.redaction import mask
from tests.support.daemon_log import daemon_log
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.unit.api.conftest import Client
from tests.unit.api.test_roles import BODIES


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    with daemon_log("debug") as log:
        yield log


async def test_tokens_never_appear_in_logs_or_responses(
    client: Client,
    daemon: FakeDaemonView,
    tokens: Tokens,
    bearers: dict[Role, dict[str, str]],
    written: io.StringIO,
) -> None:
    text_seen = ""
    for role, headers in bearers.items():
        for operation in OPERATIONS:
            if operation.media == "text/event-stream":
                continue
            path = operation.path.replace("{name}", "chat").replace("{id}", "chat-s1")
            body = BODIES.get(operation.name)
            for url in (path, f"{path}?token={headers['Authorization'][7:]}"):
                async with client.request(operation.method, url, json=body, headers=headers) as response:
                    text_seen += await response.text() + str(response.headers)
        assert role in text_seen
    del daemon._targets  # provoke an internal error, which is logged with its traceback
    async with client.get("/v1/targets", headers=bearers["admin"]) as response:
        assert response.status == 500
    tokens.reload()

    log = written.getvalue()
    assert "api.failed" in log
    for headers in bearers.values():
        _, name, secret = headers["Authorization"].split("_", 2)
        assert secret not in log
        assert secret not in text_seen
        assert f"fl_{name}" not in text_seen


def test_masks_a_token_at_any_position() -> None:
    text, _ = mint_token(role="admin", principal="ann", made_at=NOON, expires=None)

    assert mask(f"curl failed: {text}") == "curl failed: ***"


def test_does_not_mask_what_is_said_of_a_missing_secret() -> None:
    said = "[notify webhook] secret_file: missing; it is required"

    assert mask(said) == said
    assert mask("api_key: missing-link") == "api_key: ***"
