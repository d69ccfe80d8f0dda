"""A real daemon asks in Slack, and the signed press of a button there starts a rollout that is promoted."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import aiohttp
import pytest

from flettner.primitives.wall_clock import utc_now
from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.decision_services import KEY, SignedCall, SlackService
from tests.support.rig import Rig, lost, until
from tests.unit.notifiers.receiver import Receiver, receiving

PEOPLE = '{ U0ALICE = ["alice", "operator"], U0BOB = ["bob", "operator"] }'
TABLE = '[[notify]]\nkind = "slack"\nurl = "{url}"\nsigning_secret_file = "slack.secret"\npeople = {people}\n'


async def press(rig: Rig, call: SignedCall) -> int:
    headers, body = call
    url = f"http://127.0.0.1:{rig.api}/v1/decisions/slack"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers) as answer,
    ):
        return answer.status


async def wait_for_message(receiver: Receiver, text: str) -> Mapping[str, Any]:
    """The first message that says this."""

    async def messages() -> list[Any]:
        return [body for body in receiver.bodies if re.search(text, str(body))]

    return (await until(messages, bool, f"a message with {text!r}"))[0]  # type: ignore[no-any-return]


@pytest.mark.timeout(300)
async def test_the_press_of_another_person_starts_a_rollout_that_is_promoted(site: Start) -> None:
    async with receiving() as slack:
        tables = TABLE.format(url=slack.url, people=PEOPLE)
        rig = await site(SiteConfig(approval="other", tables=tables))
        (rig.home / "slack.secret").write_text(KEY)
        await rig.serving()
        service = SlackService(reply_to=slack.url.replace("hook", "actions"))
        made = await rig.propose(max_num_seqs=16)
        asked = await wait_for_message(slack, "flettner_approve")
        (value,) = {button["value"] for button in asked["blocks"][-1]["elements"]}
        by_bob = partial(service.press, "approve", value, "U0BOB")

        forged = await press(rig, by_bob(utc_now(), "another key"))
        own = await press(rig, service.press("approve", value, "U0ALICE", utc_now()))
        refusal = await wait_for_message(slack, "ephemeral")
        between = await rig.suggestion(made["id"])
        async with rig.clients() as traffic:
            genuine = by_bob(utc_now())
            first, second = await press(rig, genuine), await press(rig, genuine)
            ended = await rig.ended(made["id"])
        await wait_for_message(slack, "approved by bob.*replace_original")
        await wait_for_message(slack, "promoted|in force")
        server = await rig.consistent_server()

    assert made["digest"] in value
    assert (forged, own, first, second) == (401, 200, 200, 409)
    assert (between["status"], "another" in str(refusal)) == ("open", True)
    assert (ended["outcome"], server, lost(traffic)) == ("promoted", "chat-r2", [])
    approvals = [entry for entry in rig.audit() if entry["action"] == "suggestion.approved"]
    assert [entry["actor"]["id"] for entry in approvals] == ["bob"]
