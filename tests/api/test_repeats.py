"""A request that is sent again with its key gets the first answer and changes nothing."""

import asyncio
from typing import Any

import pytest

from agent.api import repeats
from agent.api.repeats import HEADER
from agent.config.door import Role
from agent.errors import JournalError
from tests.api.conftest import Client
from tests.fake_desk import FakeDesk

CHANGE = "/v1/targets/chat/suggestions"
BODY = {"to": {"max_num_seqs": 128}, "reason": "a test"}


async def post(
    client: Client, key: str, body: object = BODY, path: str = CHANGE, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    async with client.post(path, json=body, headers={HEADER: key, **(headers or {})}) as response:
        return response.status, await response.json(content_type=None)


async def test_a_repeat_gets_the_same_answer_and_asks_for_nothing(client: Client, desk: FakeDesk) -> None:
    first = await post(client, "a")
    desk.suggest({"max_num_seqs": 96})
    again = await post(client, "a")

    assert first == again
    assert (first[0], first[1]["id"]) == (201, "chat-s1")
    assert len(desk.suggestions()) == 2


async def test_without_the_same_key_it_is_another_request(client: Client, desk: FakeDesk) -> None:
    await post(client, "a")
    await post(client, "b")

    assert len(desk.suggestions()) == 2


async def test_a_key_belongs_to_one_request_of_one_caller(
    client: Client, desk: FakeDesk, bearers: dict[Role, dict[str, str]]
) -> None:
    await post(client, "a")

    other_body = await post(client, "a", {**BODY, "reason": "another"})
    other_path = await post(client, "a", None, "/v1/targets/chat/pause")
    other_caller = await post(client, "a", headers=bearers["admin"])

    assert [other_body[0], other_path[0], other_caller[0]] == [422, 422, 201]
    assert not desk.states()["chat"].paused


async def test_a_refusal_is_repeated_as_well(client: Client, desk: FakeDesk) -> None:
    beyond = {"to": {"max_num_seqs": 4096}, "reason": "more"}
    first = await post(client, "a", beyond)
    desk.bounds = {}

    assert first[0] == 409
    assert await post(client, "a", beyond) == first


async def test_what_failed_may_be_tried_again(client: Client, desk: FakeDesk) -> None:
    desk.next_error = JournalError("No space left on device")

    assert [(await post(client, "a"))[0], (await post(client, "a"))[0]] == [503, 201]


async def test_a_repeat_while_the_first_is_worked_on_is_told_to_wait(client: Client, desk: FakeDesk) -> None:
    answers = await asyncio.gather(*(post(client, "a") for _ in range(8)))

    assert sorted({status for status, _ in answers} - {409}) == [201]
    assert len(desk.suggestions()) == 1


async def test_answers_are_not_kept_without_end(
    client: Client, desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "KEPT", 2)
    for key in ("a", "b", "c"):
        await post(client, key)

    await post(client, "c")
    assert len(desk.suggestions()) == 3
    await post(client, "a")
    assert len(desk.suggestions()) == 4


@pytest.mark.parametrize("key", ["", "a b", "x" * 129, "\u00e9"])
async def test_a_strange_key_is_refused(client: Client, desk: FakeDesk, key: str) -> None:
    assert (await post(client, key))[0] == 422
    assert desk.suggestions() == []
