"""A token limited to some targets: every operation hides the remaining targets."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import OPERATIONS, build_app
from flettner.agent.api.operations import Operation
from flettner.agent.api.problems import MEDIA
from flettner.agent.api.tokens import Tokens, mint_token, store_tokens
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from tests.support.fake_daemon_view import NOON, PLAN, FakeDaemonView
from tests.unit.api.conftest import Client, with_key
from tests.unit.api.test_roles import BODIES

HIDDEN = "merger"  # a name that a token limited to `chat` must never read


@pytest.fixture
def daemon() -> FakeDaemonView:
    """A daemon with two targets, each with a suggestion and a rollout."""
    daemon = FakeDaemonView(target=HIDDEN)
    made = daemon.suggest({"max_num_seqs": 128}, why=HIDDEN)
    state = daemon.targets()[HIDDEN].state
    daemon.record(HIDDEN)
    other = FakeDaemonView()
    shown = other.suggest({"max_num_seqs": 96})
    assert (made.id, shown.id) == ("merger-s1", "chat-s1")
    daemon.set(other.targets()["chat"].state)
    daemon.targets()["chat"].reading = None
    daemon.set(replace(state, rollout=rollout("merger-o1", made)))
    daemon.target = "chat"
    daemon.record("chat.seen")
    return daemon


def rollout(name: str, suggestion: Suggestion) -> Canary:
    return Canary(
        id=name,
        suggestion=suggestion,
        server="r1",
        replicas={},
        plan=PLAN,
        started_at=NOON,
        phase_since=NOON,
    )


@pytest.fixture
async def scoped(daemon: FakeDaemonView, tmp_path: Path) -> AsyncIterator[Client]:
    text, token = mint_token(
        role="operator", principal="ann", made_at=NOON, expires=None, targets=("chat", "no-more")
    )
    store_tokens(tmp_path / "scoped", [token])
    app = build_app(daemon, Tokens(tmp_path / "scoped", daemon.now), heartbeat_s=0.05)
    bearer = {"Authorization": f"Bearer {text}"}
    async with TestClient(TestServer(app), headers=bearer, middlewares=[with_key]) as client:
        yield client


async def test_nothing_comes_after_a_suggestion_out_of_scope(scoped: Client, daemon: FakeDaemonView) -> None:
    body = {"to": {"max_num_seqs": 32}, "reason": "newer", "after": "merger-s1"}

    async with scoped.post("/v1/targets/chat/suggestions", json=body) as response:
        problem = await response.json(content_type=MEDIA)

    assert (response.status, problem["detail"]) == (404, "There is no target 'merger'; there are: chat.")
    assert all(made.proposal.after == "" for made in daemon.suggestions())


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_no_operation_reads_or_changes_a_target_out_of_scope(
    scoped: Client, daemon: FakeDaemonView, operation: Operation
) -> None:
    before: State = daemon.targets()[HIDDEN].state
    kind = "o1" if "rollouts" in operation.path else "s1"
    path = operation.path.replace("{name}", HIDDEN).replace("{id}", f"{HIDDEN}-{kind}")
    headers = {"Last-Event-ID": "0"} if operation.media == "text/event-stream" else {}
    async with scoped.request(
        operation.method, path, json=BODIES.get(operation.name), headers=headers
    ) as response:
        if headers:
            text = ""
            while "chat.seen" not in text:
                text += (await response.content.readline()).decode()
        else:
            text = await response.text()

    whole = operation.name == "reloadConfig"  # concerns every target
    absent = "{" in operation.path or operation.path.startswith("/v1/sign-in")  # no provider is configured
    assert response.status == (404 if absent else 403 if whole else 200)
    assert not daemon.reloads
    assert HIDDEN not in text.replace(f"'{HIDDEN}", "").replace(f"{HIDDEN}-{kind}'", "")  # as it was asked
    assert daemon.targets()[HIDDEN].state is before


async def test_target_in_scope_is_fully_visible(scoped: Client, daemon: FakeDaemonView) -> None:
    async with scoped.get("/v1/targets") as response:
        assert [document["name"] for document in (await response.json())["targets"]] == ["chat"]
    async with scoped.get("/v1/suggestions") as response:
        assert [document["id"] for document in (await response.json())["suggestions"]] == ["chat-s1"]
    async with scoped.post("/v1/targets/chat/pause") as response:
        assert response.status == 200
    assert daemon.targets()["chat"].state.paused


async def test_entries_out_of_scope_show_only_their_number(scoped: Client) -> None:
    async with scoped.get("/v1/audit") as response:
        page = json.loads(await response.text())

    assert page["records"][0] == {"seq": 1}
    assert (page["records"][1]["event"], page["next"]) == ("chat.seen", 2)
