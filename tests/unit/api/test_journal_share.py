"""The share of the audit journal, and of the open suggestions, that an operator's requests may take."""

from datetime import timedelta

import pytest

from flettner.agent.audit.records import DAEMON, Actor, JournalEntry
from flettner.agent.audit.write_budget import PERSON_BYTES, REFILL_S, TARGET_BYTES, WriteBudget
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.unit.api.conftest import Client, get, post

ANN = "operator ann"
PROPOSALS = "/v1/targets/chat/suggestions"
HOUR = timedelta(seconds=REFILL_S)


def entry(person: str, target: str = "chat") -> JournalEntry:
    return JournalEntry(at=NOON, actor=Actor(kind="person", id=person), action="change.asked", target=target)


async def propose(client: Client, **to: int) -> tuple[int, str, str]:
    async with client.post(PROPOSALS, json={"to": to, "reason": "more"}) as answer:
        document = await answer.json()
        return answer.status, document.get("type", ""), answer.headers.get("Retry-After", "")


async def test_a_spent_share_refuses_proposals_and_resumptions_only(
    client: Client, daemon: FakeDaemonView
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    assert (await post(client, "/v1/targets/chat/pause"))[0] == 200
    daemon.waits[ANN, "chat"] = 86.2

    assert await propose(client, max_num_seqs=96) == (429, "urn:flettner:problem:journal-share-spent", "87")
    async with client.post("/v1/targets/chat/resume") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "87")
    assert (await post(client, "/v1/targets/chat/pause"))[0] == 200
    assert (await post(client, f"/v1/suggestions/{made.id}/deny", {"reason": "no"}))[0] == 200


async def test_a_full_journal_refuses_proposals_only(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    daemon.full = True

    assert await propose(client, max_num_seqs=96) == (503, "urn:flettner:problem:audit-full", "3600")
    assert (await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest}))[0] == 200
    (warning,) = (await get(client, "/v1/targets/chat"))["warnings"]
    assert "journal is full" in warning


async def test_an_operator_has_few_open_proposals_on_a_target(client: Client, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128}, rule="person", policy=ANN)
    daemon.suggest({"block_size": 32}, rule="person", policy=ANN)
    state = daemon.targets()["chat"].state
    assert [suggestion.id for suggestion in state.suggestions.open] == ["chat-s2", "chat-s1"]

    status, kind, after = await propose(client, max_num_batched_tokens=4096)
    assert (status, kind) == (429, "urn:flettner:problem:too-many-open")
    assert int(after) > 0
    assert (await propose(client, max_num_seqs=96))[0] == 201  # in the place of the first


def test_an_operator_cannot_use_up_the_share_of_others() -> None:
    budget = WriteBudget()
    budget.charge(entry("mallory"), PERSON_BYTES + 1)

    assert budget.wait_s("mallory", "chat", NOON) > 0
    assert budget.wait_s("mallory", "batch", NOON) > 0
    assert budget.wait_s("ann", "chat", NOON) == 0


def test_operators_together_cannot_exceed_the_share_of_a_target() -> None:
    budget = WriteBudget()
    for number in range(TARGET_BYTES // PERSON_BYTES + 1):
        budget.charge(entry(f"token {number}"), PERSON_BYTES)

    assert budget.wait_s("ann", "chat", NOON) == pytest.approx(REFILL_S / 4)
    assert budget.wait_s("ann", "batch", NOON) == 0


def test_a_share_is_refilled_within_an_hour() -> None:
    budget = WriteBudget()
    budget.charge(entry("mallory"), 2 * PERSON_BYTES)

    assert budget.wait_s("mallory", "chat", NOON) == pytest.approx(REFILL_S)
    assert budget.wait_s("mallory", "chat", NOON + HOUR / 2) == pytest.approx(REFILL_S / 2)
    assert budget.wait_s("mallory", "chat", NOON + 2 * HOUR) == 0
    assert budget.wait_s("mallory", "chat", NOON - HOUR) == pytest.approx(REFILL_S)  # the clock was set back


def test_entries_of_the_daemon_are_not_charged() -> None:
    budget = WriteBudget()
    budget.charge(JournalEntry(at=NOON, actor=DAEMON, action="target.observed", target="chat"), 2**40)

    assert budget.wait_s("ann", "chat", NOON) == 0
