"""The requests to each kind of receiver."""

import hashlib
import hmac
import json
import re
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flettner.agent.domain.errors import ConfigError, NoticeError
from flettner.agent.notify.rules import Notice, Notifier, OutgoingNotice
from flettner.agent.plugins.loader import build_plugin, list_plugins
from flettner.notifiers.webhook import sign

DOCS = Path(__file__).parents[3] / "docs" / "notifications.md"
AT = datetime(2030, 1, 1, 12, tzinfo=UTC)
LOST = Notice(
    id="target.lost/chat",
    kind="target.lost",
    at=AT,
    title="chat: no server runs",
    text="[chat-r0](http://evil) ended: <b>",
    target="chat",
    place="/targets/chat",
    link="https://t.example.org/#/targets/chat",
    key="chat/servers",
)
OVER = Notice(
    id="target.restored/chat",
    kind="target.restored",
    at=AT,
    title="chat: back",
    target="chat",
    key="chat/servers",
    ends=True,
)
STARTED = Notice(id="daemon.restarted/1", kind="daemon.restarted", at=AT, title="flettner has started")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("PLANTED\n")
    (tmp_path / "url").write_text("https://hooks.example.org/PLANTED\n")
    return tmp_path


def made(kind: str, files: Path) -> Notifier:
    given: Any = {
        "webhook": {"secret_file": str(files / "secret"), "url_file": str(files / "url")},
        "pagerduty": {"key_file": str(files / "secret")},
        "mail": {
            "server": "smtp.example.org",
            "sender": "flettner@example.org",
            "people": {"ann@example.org": ("ann", "operator")},
            "link_key_file": str(files / "secret"),
        },
    }.get(kind, {"url_file": str(files / "url")})
    notifier: Any = build_plugin("notifiers", kind, given)
    return notifier  # type: ignore[no-any-return]


def sent(kind: str, notice: Notice, files: Path) -> Any:  # noqa: ANN401 - any JSON
    post = made(kind, files).post(notice, AT)
    return json.loads(post.body) if isinstance(post, OutgoingNotice) else post


def test_a_webhook_can_verify_sender_and_time(files: Path) -> None:
    post = made("webhook", files).post(LOST, AT)

    assert isinstance(post, OutgoingNotice)
    assert post.url == "https://hooks.example.org/PLANTED"
    stamp = post.headers["Flettner-Timestamp"]
    assert post.headers["Flettner-Signature"] == f"v1={sign('PLANTED', stamp, post.body)}"
    assert post.headers["Flettner-Signature"] != f"v1={sign('PLANTED', str(int(stamp) + 1), post.body)}"
    assert json.loads(post.body) == {
        "version": 1,
        "host": socket.gethostname(),
        "id": "target.lost/chat",
        "kind": "target.lost",
        "severity": "critical",
        "at": "2030-01-01T12:00:00+00:00",
        "title": "chat: no server runs",
        "text": "[chat-r0](http://evil) ended: <b>",
        "target": "chat",
        "place": "/targets/chat",
        "link": "https://t.example.org/#/targets/chat",
        "key": "chat/servers",
        "ends": False,
        "suggestion": "",
        "digest": "",
    }


def test_the_documented_signature_check_works(files: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    at = datetime.now(UTC)  # noqa: TID251 - the documented check compares with the clock
    post = made("webhook", files).post(LOST, at)
    assert isinstance(post, OutgoingNotice)
    had: dict[str, Any] = {
        "hmac": hmac,
        "hashlib": hashlib,
        "time": time,
        "key": b"PLANTED",
        "timestamp": post.headers["Flettner-Timestamp"].encode(),
        "signature": post.headers["Flettner-Signature"],
    }

    genuine = []
    for body in (post.body, post.body + b" "):
        namespace: dict[str, Any] = had | {"body": body}
        exec(snippet, namespace)  # noqa: S102 - it is our own
        genuine.append(namespace["genuine"])

    assert genuine == [True, False]


def test_a_signature_equals_that_of_openssl() -> None:
    made = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", "key", "-r"], input=b"1.{}", capture_output=True, check=True
    )

    assert sign("key", "1", b"{}") == made.stdout.split()[0].decode()


def test_slack_gets_plain_text(files: Path) -> None:
    (attachment,) = sent("slack", LOST, files)["attachments"]

    assert attachment["text"] == "[chat-r0](http://evil) ended: &lt;b&gt;"
    assert attachment["mrkdwn_in"] == []


def test_teams_gets_a_card_without_markdown(files: Path) -> None:
    (attachment,) = sent("teams", LOST, files)["attachments"]
    card = attachment["content"]

    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert card["actions"] == [
        {"type": "Action.OpenUrl", "title": "Open in flettner", "url": "https://t.example.org/#/targets/chat"}
    ]


def test_pagerduty_opens_and_resolves_the_same_incident(files: Path) -> None:
    opened, over = sent("pagerduty", LOST, files), sent("pagerduty", OVER, files)

    assert (opened["event_action"], over["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == over["dedup_key"]
    assert opened["payload"]["severity"] == "critical"
    assert opened["routing_key"] == "PLANTED"


def test_alertmanager_resolves_the_same_alert(files: Path) -> None:
    (opened,), (over,) = sent("alertmanager", LOST, files), sent("alertmanager", OVER, files)

    assert opened["labels"] == over["labels"]
    assert opened["endsAt"] == (AT + timedelta(days=1)).isoformat()
    assert over["endsAt"] == AT.isoformat()


@pytest.mark.parametrize("kind", ["pagerduty", "alertmanager"])
def test_ordinary_notices_page_no_operator(kind: str, files: Path) -> None:
    assert sent(kind, STARTED, files) is None


@pytest.mark.parametrize("kind", list_plugins("notifiers"))
@pytest.mark.parametrize("content", ["", "two\nlines", "x" * 5000, None])
def test_a_file_without_a_secret_is_named_but_not_shown(kind: str, content: str | None, files: Path) -> None:
    notifier = made(kind, files)
    for file in (files / "secret", files / "url"):
        file.unlink()
        if content is not None:
            file.write_text(content)

    with pytest.raises(NoticeError) as caught:
        notifier.post(LOST, AT)

    assert str(files) in str(caught.value)
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize("kind", ["slack", "teams", "alertmanager"])
def test_one_valid_url_is_required(kind: str) -> None:
    for options in ({}, {"url": "https://a", "url_file": "b"}, {"url": "ftp://a"}, {"url": "https://[::1"}):
        with pytest.raises(ConfigError, match="url"):
            build_plugin("notifiers", kind, options)
