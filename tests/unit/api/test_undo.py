"""`POST /v1/targets/{name}/undo`: the way back from the last promotion, by the guards of any proposal."""

from dataclasses import replace
from typing import Any

import pytest

from flettner.agent.config.listen import Role
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Outcome, Server
from flettner.agent.domain.state import Phase
from flettner.vllm_facts.values import Setting
from tests.support.fake_daemon_view import NOON, FakeDaemonView, MachineDaemonView
from tests.unit.api.conftest import Client, post

PATH = "/v1/targets/chat/undo"
BODY: dict[str, Any] = {"reason": "answers are slower since"}


@pytest.fixture
def daemon() -> FakeDaemonView:
    """The decisions are the real machine's."""
    return promoted(MachineDaemonView(), {"max_num_seqs": 64}, {"max_num_seqs": 32})


def promoted(daemon: FakeDaemonView, to: Setting, before: Setting) -> FakeDaemonView:
    state = daemon.targets()["chat"].state
    start = {knob: value for knob, value in to.items() if knob == "image"}
    flags = {knob: value for knob, value in to.items() if knob != "image"}
    server = Server(name="chat-r1", address="127.0.0.1:8101", setting=flags, start=start)
    outcome = Outcome(at=NOON, result="promoted", to=to, before=before)
    daemon.set(replace(state, phase=Phase.OBSERVING, fleet=Fleet(servers=(server,)), outcomes=(outcome,)))
    return daemon


async def test_undo_is_a_proposal_of_the_person_that_needs_approval(
    client: Client, daemon: FakeDaemonView
) -> None:
    status, made = await post(client, PATH, BODY)

    assert status == 201
    assert (made["from"], made["to"]) == ({"max_num_seqs": 64}, {"max_num_seqs": 32})
    assert made["rule"] == "person"
    assert made["policy"] == "operator ann"
    assert made["why"] == "undoes the promotion at 2026-11-20 12:00 UTC: answers are slower since"
    assert daemon.targets()["chat"].state.rollout is None
    assert daemon.records(0, 10)[-1]["event"] == "ChangeAsked"


async def test_who_asked_for_it_does_not_approve_it_where_another_person_must(
    client: Client, daemon: FakeDaemonView
) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, approval="other"))

    _, made = await post(client, PATH, BODY)

    assert made["barred"] == "operator ann"


@pytest.mark.parametrize("role", [None, "viewer"])
async def test_a_viewer_undoes_nothing(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]], role: Role | None
) -> None:
    headers = bearers[role] if role else {"Authorization": "Bearer of-nobody"}

    async with client.post(PATH, json=BODY, headers=headers) as response:
        assert response.status == (403 if role else 401)
    assert daemon.records(0, 10) == []


async def test_only_an_admin_undoes_an_upgrade(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]]
) -> None:
    promoted(daemon, {"image": "vllm/vllm-openai:v0.33.0"}, {"image": "vllm/vllm-openai:v0.32.0"})

    status, problem = await post(client, PATH, BODY)
    async with client.post(PATH, json=BODY, headers=bearers["admin"]) as response:
        by_admin = await response.json(content_type=None)

    assert (status, problem["type"]) == (403, "urn:flettner:problem:admin-only")
    assert "[targets.upgrades] images allows none" in by_admin["detail"]  # the guard's limits hold, too


async def test_nothing_is_proposed_where_nothing_was_promoted(client: Client, daemon: FakeDaemonView) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, outcomes=()))

    status, problem = await post(client, PATH, BODY)

    assert (status, problem["type"]) == (409, "urn:flettner:problem:nothing-to-undo")
    assert daemon.records(0, 10) == []


async def test_a_change_by_hand_is_not_undone(client: Client, daemon: FakeDaemonView) -> None:
    state = daemon.targets()["chat"].state
    by_hand = replace(state.fleet.servers[0], setting={"max_num_seqs": 48})
    daemon.set(replace(state, fleet=Fleet(servers=(by_hand,))))

    status, problem = await post(client, PATH, BODY)

    assert status == 409
    assert "max_num_seqs was changed since the promotion at 2026-11-20 12:00 UTC" in problem["detail"]


async def test_a_rollout_that_runs_is_aborted_not_undone(client: Client, daemon: FakeDaemonView) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, phase=Phase.RESTORING, note="chat-r1 exited"))

    status, problem = await post(client, PATH, BODY)

    assert (status, problem["type"]) == (409, "urn:flettner:problem:busy")


async def test_a_repeated_request_makes_one_suggestion(client: Client, daemon: FakeDaemonView) -> None:
    headers = {"Idempotency-Key": "undo-1"}

    async with client.post(PATH, json=BODY, headers=headers) as response:
        first = response.status, (await response.json())["id"]
    async with client.post(PATH, json=BODY, headers=headers) as response:
        again = response.status, (await response.json())["id"]

    assert first == again == (201, "chat-s1")
    assert [record["event"] for record in daemon.records(0, 10)] == ["ChangeAsked"]
