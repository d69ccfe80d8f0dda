"""Commands that people write to flettner in Teams."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flettner.agent.api.decision_sources import DecisionReply, ForgedDecisionError, SignedRequest
from flettner.agent.domain.errors import ConfigError, NoticeError
from flettner.agent.notify.rules import waiting_notice
from flettner.agent.plugins.loader import build_plugin
from flettner.notifiers.teams import Teams
from tests.support.decision_services import TeamsService
from tests.support.fake_daemon_view import NOON
from tests.unit.notify.test_rules import SERVING, SUGGESTION

NOTICE = waiting_notice(SERVING, replace(SUGGESTION, digest="sha256:" + "a1" * 32), NOON)
SERVICE = TeamsService()


@pytest.fixture
def teams(tmp_path: Path) -> Teams:
    return SERVICE.notifier(tmp_path)


def test_the_card_says_what_to_write(teams: Teams) -> None:
    card = json.loads(teams.post(NOTICE, NOON).body)["attachments"][0]["content"]

    assert card["body"][-1]["inlines"][0]["text"] == (
        "To decide, mention flettner here: approve chat-s1 a1a1a1a1a1a1a1a1, or deny chat-s1"
    )


def request(headers: Mapping[str, str], body: bytes, at: datetime = NOON) -> SignedRequest:
    return SignedRequest(headers=headers, body=body, at=at, decisions="/v1/decisions/teams")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<at>flettner</at> approve chat-s1 a1a1a1a1a1a1a1a1", ("approve", "sha256:a1a1a1a1a1a1a1a1")),
        (
            "<p><at>flettner</at>&nbsp;Approve chat-s1 sha256:a1a1a1a1a1a1a1a1</p>",
            ("approve", "sha256:a1a1a1a1a1a1a1a1"),
        ),
        ("<at>flettner</at> approve chat-s1", ("approve", "")),
        ("<at>flettner</at> approve chat-s1 a1a1", ("approve", "")),
        ("<at>flettner</at> deny chat-s1\n", ("deny", "")),
        ("<at>flettner</at> show chat-s1", ("show", "")),
        ("<at>flettner</at> chat-s1", ("show", "")),
    ],
    ids=str,
)
def test_reads_a_command(teams: Teams, text: str, expected: tuple[str, str]) -> None:
    headers, body = SERVICE.say(text)

    decision = teams.read_decision(request(headers, body))

    assert (decision.verb, decision.digest) == expected
    assert decision.suggestion == "chat-s1"
    assert (decision.id == "") == (decision.verb == "show")


def test_the_answer_shows_a_changed_suggestion_with_what_to_write(teams: Teams) -> None:
    decision = teams.read_decision(request(*SERVICE.say("show x")))

    answer = teams.answer(decision, DecisionReply(text="It has changed.", notice=NOTICE))

    assert json.loads(answer.body) == {
        "type": "message",
        "textFormat": "plain",
        "text": f"It has changed.\n\n{NOTICE.title}\n\n{NOTICE.text}\n\n"
        "approve chat-s1 a1a1a1a1a1a1a1a1, or deny chat-s1",
    }


def test_the_signature_is_over_the_body_with_the_decoded_token(tmp_path: Path) -> None:
    """Made by: printf '{"type":"message"}' | openssl dgst -sha256 -hmac flettner -binary | base64."""
    (tmp_path / "token").write_text("ZmxldHRuZXI=")
    teams = Teams(
        url="https://a.example",
        security_token_file=str(tmp_path / "token"),
        people={"u": ("ann", "operator")},
    )
    headers = {"Authorization": "HMAC gVsneXAuxoocGeqmOTrGowj7G/H1POo1PS9G2G1VgdE="}

    with pytest.raises(ForgedDecisionError, match="not a message of a person"):
        teams.read_decision(request(headers, b'{"type":"message"}', datetime(2030, 1, 1, tzinfo=UTC)))


def test_a_token_that_is_no_base64_is_named(teams: Teams) -> None:
    Path(teams.security_token_file).write_text("not base64!")

    with pytest.raises(NoticeError, match=r"teams\.token: must hold the security token"):
        teams.post(NOTICE, NOON)


def test_commands_need_a_token_and_people() -> None:
    with pytest.raises(ConfigError, match="need each other"):
        build_plugin("notifiers", "teams", {"url": "https://a.example", "security_token_file": "t"})
