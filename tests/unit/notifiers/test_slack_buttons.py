"""Buttons of suggestions in Slack: the message, what is pressed, and how the message changes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from flettner.agent.api.decision_sources import DecisionReply, ForgedDecisionError, SignedRequest
from flettner.agent.domain.errors import ConfigError, NoticeError
from flettner.agent.notify.rules import waiting_notice
from flettner.agent.plugins.loader import build_plugin
from flettner.notifiers.slack import Slack
from tests.support.decision_services import PEOPLE, SlackService
from tests.support.fake_daemon_view import NOON
from tests.unit.notify.test_rules import SERVING, SUGGESTION

WAITING = replace(SUGGESTION, digest="sha256:" + "a" * 64, notes=("surge: two GPUs are free",))
NOTICE = replace(
    waiting_notice(SERVING, WAITING, NOON),
    link="https://flettner.example.org/#/suggestions/chat-s1",
    decisions="https://flettner.example.org/v1/decisions/slack",
)
SERVICE = SlackService()


@pytest.fixture
def slack(tmp_path: Path) -> Slack:
    return SERVICE.notifier(tmp_path)


def message_of(slack: Slack) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(slack.post(NOTICE, NOON).body)
    return message


def request(headers: Mapping[str, str], body: bytes, at: datetime = NOON) -> SignedRequest:
    return SignedRequest(headers=headers, body=body, at=at, decisions=NOTICE.decisions)


def test_a_suggestion_is_shown_with_its_digest_and_two_buttons(slack: Slack) -> None:
    title, text, context, actions = message_of(slack)["blocks"]

    assert title["text"] == {"type": "plain_text", "text": NOTICE.title, "emoji": False}
    assert text["text"]["text"] == (
        "3 requests wait. Expected: fewer requests wait. Risk: more KV cache is used. "
        "Rollout: surge: two GPUs are free."
    )
    assert context["elements"][0]["text"] == f"<{NOTICE.link}|Open in flettner>"
    assert context["elements"][1]["text"].startswith("sha256:aaaaaaaaaaaaaaaa ")
    assert [button["action_id"] for button in actions["elements"]] == ["flettner_approve", "flettner_deny"]
    assert all(f"chat-s1 sha256:{'a' * 64} " in button["value"] for button in actions["elements"])
    assert all(len(button["value"]) <= 2000 and button["confirm"] for button in actions["elements"])


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_a_button_of_the_message_says_what_was_pressed(slack: Slack, verb: str) -> None:
    buttons = {button["action_id"]: button for button in message_of(slack)["blocks"][3]["elements"]}
    headers, body = SERVICE.call(verb, NOTICE)
    (pressed,) = json.loads(parse_qs(body.decode())["payload"][0])["actions"]

    decision = slack.read_decision(request(headers, body))

    assert buttons[pressed["action_id"]]["value"] == pressed["value"]
    assert (decision.verb, decision.suggestion, decision.digest) == (verb, "chat-s1", WAITING.digest)
    assert (decision.sender, decision.person and decision.person.principal) == (
        "Slack user U0ALICE",
        "operator alice",
    )


@pytest.mark.parametrize(
    "state",
    [replace(SERVING, mode="advise"), SERVING],
    ids=["advise mode", "approved, and waits"],
)
def test_what_nobody_can_decide_now_has_no_buttons(slack: Slack, state: Any) -> None:  # noqa: ANN401
    shown = WAITING if state.mode == "advise" else replace(WAITING, approved_by="ann")

    message = json.loads(slack.post(waiting_notice(state, shown, NOON), NOON).body)

    assert "blocks" not in message


def test_the_signature_is_that_of_slacks_own_example(slack: Slack) -> None:
    """https://docs.slack.dev/authentication/verifying-requests-from-slack"""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }

    with pytest.raises(ForgedDecisionError, match="not the press of one of flettner's buttons"):
        slack.read_decision(request(headers, body, datetime.fromtimestamp(1531420618, UTC)))


@pytest.mark.parametrize("seconds", [-299, 299])
def test_a_request_counts_for_five_minutes(slack: Slack, seconds: int) -> None:
    headers, body = SERVICE.call("approve", NOTICE)

    slack.read_decision(request(headers, body, NOON + timedelta(seconds=seconds)))
    with pytest.raises(ForgedDecisionError, match="5 minutes"):
        slack.read_decision(request(headers, body, NOON + timedelta(seconds=seconds * 1.01)))


def test_a_button_that_flettner_did_not_make_is_refused(slack: Slack) -> None:
    headers, body = SlackService(button_key="another").call("approve", NOTICE)

    with pytest.raises(ForgedDecisionError, match="button is not one that this flettner"):
        slack.read_decision(request(headers, body))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (DecisionReply(text="approved by ann", ends=True), {"replace_original": True}),
        (DecisionReply(text="U0 may not decide"), {"response_type": "ephemeral"}),
        (DecisionReply(text="it has changed", notice=NOTICE), {"replace_original": True}),
    ],
    ids=["decided", "refused", "changed"],
)
def test_the_message_shows_what_became_of_it(
    slack: Slack, reply: DecisionReply, expected: Mapping[str, object]
) -> None:
    decision = slack.read_decision(request(*SERVICE.call("approve", NOTICE)))

    post = slack.answer(decision, reply).post

    assert post is not None
    message = json.loads(post.body)
    assert post.url == SERVICE.reply_to
    assert {key: message.get(key) for key in expected} == expected
    assert message["blocks"][0]["text"]["text"] == reply.text
    assert ("actions" in {block["type"] for block in message["blocks"]}) == (reply.notice is not None)


def test_the_outcome_goes_to_no_other_host(slack: Slack) -> None:
    elsewhere = SlackService(reply_to="http://169.254.169.254/latest")
    decision = slack.read_decision(request(*elsewhere.call("approve", NOTICE)))

    assert slack.answer(decision, DecisionReply(text="approved", ends=True)).post is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"signing_secret_file": "s"}, "need each other"),
        ({"people": PEOPLE}, "need each other"),
        ({"signing_secret_file": "s", "people": {"U0": ("", "operator")}}, "people.U0: the name must be"),
        ({"signing_secret_file": "s", "people": {"U0": ("ann", "root")}}, "people.U0"),
    ],
    ids=str,
)
def test_buttons_need_a_secret_and_people(options: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_plugin("notifiers", "slack", {"url": "https://a.example", **options})


def test_a_secret_that_cannot_be_read_is_found_with_the_message(slack: Slack) -> None:
    Path(slack.signing_secret_file).unlink()

    with pytest.raises(NoticeError, match=r"slack\.secret: cannot be read"):
        slack.post(replace(NOTICE, digest=""), NOON)
