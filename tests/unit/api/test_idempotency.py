"""A request repeated with its key gets the first response and has no effect, also after a restart."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api import idempotency
from flettner.agent.api.app import OPERATIONS, build_app
from flettner.agent.api.idempotency import HEADER
from flettner.agent.api.tokens import Tokens
from flettner.agent.audit import history
from flettner.agent.audit.entries import build_entry
from flettner.agent.audit.history import Accepted, History
from flettner.agent.audit.journal import Journal
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.events import ChangeAsked, Paused
from flettner.agent.domain.state import State
from flettner.agent.runtime.daemon import Daemon
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.unit.api.conftest import Client
from tests.unit.api.test_roles import BODIES

CHANGE = "/v1/targets/chat/suggestions"
BODY = {"to": {"max_num_seqs": 128}, "reason": "a test"}


async def post(
    client: Client, key: str, body: object = BODY, path: str = CHANGE, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    async with client.post(path, json=body, headers={HEADER: key, **(headers or {})}) as response:
        return response.status, await response.json(content_type=None)


async def test_repeated_request_gets_the_same_response_without_a_second_action(
    client: Client, daemon: FakeDaemonView
) -> None:
    first = await post(client, "a")
    daemon.suggest({"max_num_seqs": 96})
    again = await post(client, "a")

    assert first == again
    assert (first[0], first[1]["id"]) == (201, "chat-s1")
    assert len(daemon.suggestions()) == 2


async def test_request_with_another_key_is_a_new_request(client: Client, daemon: FakeDaemonView) -> None:
    await post(client, "a")
    await post(client, "b")

    assert len(daemon.suggestions()) == 2


async def test_key_is_bound_to_one_request_of_one_caller(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]]
) -> None:
    await post(client, "a")

    other_body = await post(client, "a", {**BODY, "reason": "another"})
    other_path = await post(client, "a", None, "/v1/targets/chat/pause")
    other_caller = await post(client, "a", headers=bearers["admin"])

    assert [other_body[0], other_path[0], other_caller[0]] == [409, 409, 201]
    assert other_body[1]["type"].endswith("key-of-another-request")
    assert not daemon.targets()["chat"].state.paused


async def test_repeats_a_refusal(client: Client, daemon: FakeDaemonView) -> None:
    beyond = {"to": {"max_num_seqs": 4096}, "reason": "more"}
    first = await post(client, "a", beyond)
    daemon.bounds = {}

    assert first[0] == 409
    assert await post(client, "a", beyond) == first


async def test_failed_request_can_be_retried(client: Client, daemon: FakeDaemonView) -> None:
    daemon.next_error = JournalError("No space left on device")

    assert [(await post(client, "a"))[0], (await post(client, "a"))[0]] == [503, 201]


async def test_concurrent_repeat_of_a_request_is_a_conflict(client: Client, daemon: FakeDaemonView) -> None:
    answers = await asyncio.gather(*(post(client, "a") for _ in range(8)))

    assert sorted({status for status, _ in answers} - {409}) == [201]
    assert len(daemon.suggestions()) == 1


async def test_stored_responses_are_bounded(
    client: Client, daemon: FakeDaemonView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "KEPT", 2)
    for key in ("a", "b", "c"):
        await post(client, key)
    daemon._accepted.clear()  # keys restored from the journal are kept longer

    await post(client, "c")
    assert len(daemon.suggestions()) == 3
    await post(client, "a")
    assert len(daemon.suggestions()) == 4


@pytest.mark.parametrize("key", ["", "a b", "x" * 129, "\u00e9"])
async def test_refuses_an_invalid_key(client: Client, daemon: FakeDaemonView, key: str) -> None:
    assert (await post(client, key))[0] == 422
    assert daemon.suggestions() == []


@pytest.mark.parametrize(
    ("operation", "expected"),
    [(post_.name, post_.needs_key) for post_ in OPERATIONS if post_.method == "POST"],
)
async def test_refuses_a_decision_without_a_key(
    daemon: FakeDaemonView,
    tokens: Tokens,
    bearers: dict[Role, dict[str, str]],
    operation: str,
    *,
    expected: bool,
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    posted = next(candidate for candidate in OPERATIONS if candidate.name == operation)
    path = posted.path.replace("{name}", "chat").replace("{id}", made.id)
    async with (
        TestClient(TestServer(build_app(daemon, tokens)), headers=bearers["operator"]) as client,
        client.post(path, json=BODIES.get(operation)) as response,
    ):
        answer = await response.text()

    assert ("key-missing" in answer, response.status == 400) == (expected, expected)
    assert len(daemon.records(0, 10)) == (0 if expected else int(operation == "pauseTarget"))


STEPS = (
    ("pause", "/v1/targets/chat/pause", None),
    ("resume", "/v1/targets/chat/resume", None),
    ("deny", "/v1/suggestions/chat-s1/deny", {"reason": "no"}),
    ("propose", CHANGE, BODY),
    ("approve", "/v1/suggestions/chat-s2/approve", None),
    ("abort", "/v1/rollouts/chat-o1/abort", {"reason": "enough"}),
)


async def test_repeat_after_a_restart_is_recognised_from_the_journal(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    daemon.suggest({"max_num_seqs": 96})
    first, bodies = {}, {}
    async with TestClient(TestServer(build_app(daemon, tokens)), headers=bearers["operator"]) as client:
        for key, path, body in STEPS:
            bodies[key] = {"digest": daemon.suggestions()[0].digest} if key == "approve" else body
            first[key] = await post(client, key, bodies[key], path)
    written = len(daemon.records(0, 100))

    async with TestClient(TestServer(build_app(daemon, tokens)), headers=bearers["operator"]) as client:
        again = {key: await post(client, key, bodies[key], path) for key, path, _ in STEPS}
        other = [await post(client, key, {"reason": "else", "x": 1}, path) for key, path, _ in STEPS]

    assert {key: status for key, (status, _) in first.items()} == {
        **dict.fromkeys(first, 200),
        "propose": 201,
    }
    for key in ("propose", "deny", "approve"):
        assert again[key] == first[key]
    assert {key: status for key, (status, _) in again.items()} == {key: first[key][0] for key in first}
    assert [status for status, _ in other if status not in {400, 409, 422}] == []
    assert len(daemon.records(0, 100)) == written
    assert not daemon.targets()["chat"].state.paused


async def test_key_stays_bound_to_its_request_after_a_restart(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    for _ in range(2):
        async with TestClient(TestServer(build_app(daemon, tokens)), headers=bearers["operator"]) as client:
            await post(client, "a")
            assert (await post(client, "a", {**BODY, "reason": "another"}))[0] == 409
            assert (await post(client, "a", None, "/v1/targets/chat/pause"))[0] == 409

    assert len(daemon.suggestions()) == 1
    assert not daemon.targets()["chat"].state.paused


def test_restores_accepted_requests_from_the_journal(tmp_path: Path) -> None:
    state = State(target="chat")
    refused = State(target="chat", note="4096 is above the bound")
    event = ChangeAsked(at=NOON, actor="ann", to={"max_num_seqs": 4096}, reason="more", request="a1b2:c3d4")
    journal = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON)
    journal.append(build_entry(state, refused, event, ()))
    journal.append(build_entry(refused, replace(refused, note=""), Paused(at=NOON, actor="ann"), ()))
    journal.close()

    again = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON)
    live = Daemon(loops={}, journal=again, history=History.of(again))

    assert live.accepted("a1b2") == Accepted(asked="c3d4", state=refused)
    assert live.accepted("") is None
    assert live.accepted("0000") is None
    again.close()


def test_restores_only_the_latest_requests_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "REQUESTS", 2)
    journal = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON)
    for number in range(3):
        state = State(target="chat", note=f"{number}")
        paused = Paused(at=NOON, actor="ann", request=f"{number}:x")
        journal.append(build_entry(State(target="chat"), state, paused, ()))

    restored = History.of(journal)
    journal.close()

    assert [restored.find_request(str(number)) is None for number in range(3)] == [True, False, False]
