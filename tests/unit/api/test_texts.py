"""Texts of operators: bounded in bytes, without characters that change how a text is displayed."""

from pathlib import Path
from uuid import uuid4

import pytest

from flettner.agent.api.request_parsing import LONGEST_TEXT
from flettner.agent.api.tokens import load_tokens
from flettner.agent.domain.errors import ConfigError
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client

HIDDEN = (
    "\x1b[2J",
    "\x00",
    "\x7f",
    "\x9b",
    "\u202e",
    "\u2066",
    "\u200f",
    "\u061c",
    "\u2028",
    "\ufeff",
    "\u200b",
)


async def propose(client: Client, reason: str) -> int:
    body = {"to": {"max_num_seqs": 128}, "reason": reason}
    headers = {"Idempotency-Key": uuid4().hex}
    async with client.post("/v1/targets/chat/suggestions", json=body, headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("x" * LONGEST_TEXT, 201),
        ("x" * (LONGEST_TEXT + 1), 422),
        ("🔥" * (LONGEST_TEXT // 4), 201),
        ("🔥" * (LONGEST_TEXT // 4 + 1), 422),
        ("two\nlines\tand a tab: größer, より大きい", 201),
    ],
)
async def test_a_reason_is_bounded_in_bytes(client: Client, reason: str, status: int) -> None:
    assert await propose(client, reason) == status


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
async def test_a_reason_has_no_character_that_hides_or_reorders_text(
    client: Client, daemon: FakeDaemonView, hidden: str
) -> None:
    assert await propose(client, f"safe{hidden}text") == 422
    assert not daemon.suggestions()


async def test_every_text_of_an_operator_is_checked(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    for verb, body in (
        ("approve", {"digest": made.digest, "comment": "ok\u202e"}),
        ("approve", {"digest": made.digest, "comment": "ü" * LONGEST_TEXT}),
        ("deny", {"reason": "no\u2067"}),
        ("deny", {"reason": "ü" * LONGEST_TEXT}),
    ):
        async with client.post(f"/v1/suggestions/{made.id}/{verb}", json=body) as answer:
            assert answer.status == 422, (verb, body)
    assert daemon.suggestions()[0].status == "open"


@pytest.mark.parametrize("name", ["ann\\u202e", "ann\\u001b[2J", "\\u00fc" * 51, " "])
def test_a_token_of_a_name_that_hides_text_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f'{{"id":"0a1b2c3d","role":"operator","principal":"{name}","sha256":"{"0" * 64}"}}\n',
        encoding="utf-8",
    )
    path.chmod(0o600)

    with pytest.raises(ConfigError, match="printable"):
        load_tokens(path)
