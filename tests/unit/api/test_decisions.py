"""Responses to approve, deny, propose, abort and pause in each state of the target."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.api.problems import MEDIA
from flettner.agent.config.listen import Role
from flettner.agent.domain.error_budget import Budget
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.model import PreflightResult
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.state import Phase
from flettner.agent.domain.suggestion import Suggestions
from flettner.agent.machine.open_suggestions import end_suggestion
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, get, post

ZEROS = "sha256:" + "0" * 64


async def test_approval_with_the_digest_starts_the_rollout(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    async with client.get(f"/v1/suggestions/{made.id}") as response:
        shown = await response.json()
        tag = response.headers["ETag"]
    status, answer = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": shown["digest"]})

    assert tag == f'"{made.digest}"'
    assert (shown["from"], shown["to"], shown["class"]) == (
        {"max_num_seqs": 64},
        {"max_num_seqs": 128},
        "auto",
    )
    assert (status, answer["status"], answer["decided_by"]) == (200, "approved", "operator ann")
    assert daemon.targets()["chat"].state.phase is Phase.LAUNCHING


async def test_another_operator_approves_a_proposal_where_the_config_asks_for_it(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]]
) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, approval="other"))
    body = {"to": {"max_num_seqs": 128}, "reason": "more"}
    _, made = await post(client, "/v1/targets/chat/suggestions", body)
    path, digest = f"/v1/suggestions/{made['id']}/approve", {"digest": made["digest"]}

    own = await post(client, path, digest)
    async with client.post(path, json=digest, headers=bearers["admin"]) as response:
        other = response.status, (await response.json())["decided_by"]

    assert made["barred"] == "operator ann"
    assert (own[0], own[1]["type"]) == (403, "urn:flettner:problem:own-proposal")
    assert own[1]["detail"] == (
        'operator ann proposed this change, so another operator must approve it: [agent] approval is "other".'
    )
    assert other == (200, "admin ann")


async def test_any_operator_approves_what_a_policy_suggests(client: Client, daemon: FakeDaemonView) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, approval="other"))
    made = daemon.suggest({"max_num_seqs": 128}, policy="operator ann")

    status, answer = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})

    assert (status, answer["barred"]) == (200, "")


async def test_repeated_approval_is_submitted_once(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    path, body = f"/v1/suggestions/{made.id}/approve", {"digest": made.digest}

    first, second = await post(client, path, body), await post(client, path, body)

    assert first == second
    assert first[0] == 200
    assert len(daemon.records(0, 10)) == 1


async def test_refuses_a_wrong_digest_without_revealing_the_right_one(
    client: Client, daemon: FakeDaemonView
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    async with client.post(f"/v1/suggestions/{made.id}/approve", json={"digest": ZEROS}) as response:
        text = await response.text()

    assert response.status == 409
    assert "digest-differs" in text
    assert made.digest not in text
    assert made.digest not in str(response.headers)
    assert daemon.targets()["chat"].state.phase is Phase.PROPOSED


async def test_answers_410_for_an_expired_suggestion(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    daemon.at += timedelta(hours=1)

    assert (await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest}))[0] == 410
    assert (await post(client, f"/v1/suggestions/{made.id}/deny", {"reason": "late"}))[0] == 410


async def test_refuses_approval_while_the_suggestion_is_being_checked(
    client: Client, daemon: FakeDaemonView
) -> None:
    daemon.checks = True
    made = daemon.suggest({"max_num_seqs": 128})

    async with client.get(f"/v1/suggestions/{made.id}") as response:
        shown = await response.json()
        assert "ETag" not in response.headers
    status, problem = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": ZEROS})

    assert (shown["status"], shown["digest"], shown["preflight"]) == ("checking", "", None)
    assert (status, problem["type"]) == (409, "urn:flettner:problem:checking")
    assert daemon.targets()["chat"].state.phase is Phase.CHECKING


async def test_accepts_denial_while_the_suggestion_is_being_checked(
    client: Client, daemon: FakeDaemonView
) -> None:
    daemon.checks = True
    made = daemon.suggest({"max_num_seqs": 128})

    status, answer = await post(client, f"/v1/suggestions/{made.id}/deny", {"reason": "no"})

    assert (status, answer["status"]) == (200, "denied")


async def test_checked_suggestion_shows_its_rollout_plan(client: Client, daemon: FakeDaemonView) -> None:
    daemon.checks = True
    made = daemon.suggest({"max_num_seqs": 128})
    no_room = "one GPU, and vllm holds it"
    daemon.answer(
        PreflightResult(strategy="swap", why=no_room, start_s=40, outage_s=52, notes=("a warm start",))
    )

    shown = await get(client, f"/v1/suggestions/{made.id}")
    await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": shown["digest"]})
    (rollout,) = (await get(client, "/v1/rollouts"))["rollouts"]

    assert shown["status"] == "open"
    assert shown["preflight"] == {
        "strategy": "swap",
        "why": no_room,
        "start_s": 40,
        "outage_s": 52,
        "notes": ["a warm start"],
        "patch": "",
        "owner": "",
        "versions": {},
    }
    assert (rollout["strategy"], rollout["outage_s"]) == ("swap", 52)


async def test_refused_suggestion_shows_the_reason_and_cannot_be_approved(
    client: Client, daemon: FakeDaemonView
) -> None:
    daemon.checks = True
    made = daemon.suggest({"max_num_seqs": 128})
    daemon.answer(PreflightResult(problem="vLLM does not take max_num_seqs 128", lasting=True))

    (shown,) = (await get(client, "/v1/suggestions?status=refused"))["suggestions"]
    status, problem = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": ZEROS})

    assert (shown["id"], shown["notes"][-1]) == (made.id, "vLLM does not take max_num_seqs 128")
    assert shown["preflight"] is None
    assert (status, problem["type"]) == (409, "urn:flettner:problem:not-open")


async def test_checks_an_operators_change_first(client: Client, daemon: FakeDaemonView) -> None:
    daemon.checks = True
    body = {"to": {"max_num_seqs": 128}, "reason": "a test"}

    async with client.post("/v1/targets/chat/suggestions", json=body) as response:
        answer = await response.json()

    assert (response.status, answer["status"]) == (201, "checking")
    assert response.headers["Location"] == f"/v1/suggestions/{answer['id']}"
    assert "ETag" not in response.headers


async def test_a_refusal_says_what_took_the_place_of_a_suggestion(
    client: Client, daemon: FakeDaemonView
) -> None:
    old = daemon.suggest({"max_num_seqs": 128})
    daemon.set(end_suggestion(daemon.targets()["chat"].state, old, "superseded", "chat-s2 takes its place"))

    status, problem = await post(client, f"/v1/suggestions/{old.id}/approve", {"digest": old.digest})

    assert status == 409
    assert problem["detail"] == "The suggestion is not open: it is superseded: chat-s2 takes its place."


async def test_refuses_approval_in_advise_mode(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    daemon.set(replace(daemon.targets()["chat"].state, mode="advise"))

    status, problem = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})

    assert status == 409
    assert "mode is advise" in problem["detail"]


async def test_refuses_approval_while_paused(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    await post(client, "/v1/targets/chat/pause")

    status, problem = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})

    assert status == 409
    assert "flettner resume chat" in problem["detail"]


async def test_refuses_approval_if_the_state_machine_rejects_it(
    client: Client, daemon: FakeDaemonView
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    daemon._suggestions[made.id] = made
    target = daemon.targets()["chat"]
    target.state = replace(target.state, suggestions=Suggestions())  # the state machine dropped it

    status, problem = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})

    assert (status, problem["type"]) == (409, "urn:flettner:problem:not-taken")


async def test_changes_nothing_if_the_journal_is_not_writable(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    daemon.next_error = JournalError("No space left on device")

    async with client.post(f"/v1/suggestions/{made.id}/approve", json={"digest": made.digest}) as response:
        problem = await response.json(content_type=MEDIA)

    assert response.status == 503
    assert "No space left on device" in problem["detail"]
    assert response.headers["Retry-After"] == "10"
    assert daemon.suggestions()[0].status == "open"


async def test_denial_is_final_and_repeatable(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    path = f"/v1/suggestions/{made.id}"

    first = await post(client, f"{path}/deny", {"reason": "not today"})
    again = await post(client, f"{path}/deny", {"reason": "not today"})
    approval = await post(client, f"{path}/approve", {"digest": made.digest})

    assert (first[0], first[1]["status"]) == (200, "denied")
    assert again == first
    assert (approval[0], approval[1]["detail"]) == (
        409,
        "The suggestion is not open: it is denied by operator ann.",
    )


async def test_operators_change_becomes_a_suggestion(client: Client, daemon: FakeDaemonView) -> None:
    body = {"to": {"max_num_seqs": 128}, "reason": "a test"}

    async with client.post("/v1/targets/chat/suggestions", json=body) as response:
        answer = await response.json()

    assert response.status == 201
    assert response.headers["Location"] == f"/v1/suggestions/{answer['id']}"
    assert response.headers["ETag"] == f'"{answer["digest"]}"'
    assert (answer["to"], answer["why"], answer["status"]) == ({"max_num_seqs": 128}, "a test", "open")
    assert daemon.suggestions()[0].id == answer["id"]


async def test_refused_change_is_not_confused_with_the_open_suggestion(
    client: Client, daemon: FakeDaemonView
) -> None:
    daemon.suggest({"max_num_seqs": 128})

    status, problem = await post(
        client, "/v1/targets/chat/suggestions", {"to": {"max_num_seqs": 4096}, "reason": "more"}
    )

    assert status == 409
    assert "max_num_seqs 4096 is above the bound 512" in problem["detail"]


async def test_abort_rolls_back_and_is_repeatable(client: Client, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})
    path = f"/v1/rollouts/{daemon.rollouts()[0][1].id}/abort"

    first = await post(client, path, {"reason": "an incident"})
    again = await post(client, path, {"reason": "an incident"})
    daemon.settle(promoted=False)
    after = await post(client, path, {"reason": "an incident"})

    assert (first[0], first[1]["phase"]) == (200, "rolling_back")
    assert again == first
    assert (after[0], after[1]["outcome"]) == (200, "rolled_back")
    assert [record["event"] for record in daemon.records(0, 10)] == ["Approved", "Aborted"]


@pytest.mark.parametrize("is_over", [True, False], ids=["promoted", "promoting"])
async def test_refuses_abort_after_the_point_of_no_return(
    client: Client, daemon: FakeDaemonView, is_over: bool
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})
    daemon.set(replace(daemon.targets()["chat"].state, phase=Phase.PROMOTING))
    if is_over:
        daemon.settle(promoted=True)

    status, _ = await post(client, f"/v1/rollouts/{daemon.rollouts()[0][1].id}/abort", {"reason": "late"})

    assert status == 409


async def test_pause_and_resume_are_repeatable(client: Client, daemon: FakeDaemonView) -> None:
    answers = [
        await post(client, f"/v1/targets/chat/{verb}") for verb in ("pause", "pause", "resume", "resume")
    ]

    assert [(status, answer["paused"]) for status, answer in answers] == [
        (200, True), (200, True), (200, False), (200, False),
    ]  # fmt: skip
    assert [record["event"] for record in daemon.records(0, 10)] == ["Paused", "Resumed"]


async def test_target_shows_its_setting_and_health(client: Client, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128})
    budget = Budget().add(daemon.at, [RequestCounts(total=100, over_ttft=30)])
    daemon.set(replace(daemon.targets()["chat"].state, budget=budget))

    target = await get(client, "/v1/targets/chat")

    assert target["budget"][0] == {"window": "5m", "objective": "ttft", "rate": 6.0, "bad": 30, "of": 100}
    assert (target["phase"], target["mode"], target["goodput_rps"], target["ttft_p95_s"]) == (
        "proposed", "approve", 7.5, 0.42,
    )  # fmt: skip
    assert target["servers"][0]["setting"] == {"max_num_seqs": 64}
    assert target["suggestion"] == "chat-s1"
    assert [source["available"] for source in target["sources"]] == [False, True]
    assert target["reading"]["running"]["mean"] == 12


async def test_query_parameters_filter_lists(client: Client, daemon: FakeDaemonView) -> None:
    for seqs in (96, 128):
        daemon.suggest({"max_num_seqs": seqs})

    async def ids(query: str) -> list[str]:
        return [
            suggestion["id"] for suggestion in (await get(client, f"/v1/suggestions?{query}"))["suggestions"]
        ]

    assert await ids("") == ["chat-s2", "chat-s1"]
    assert await ids("limit=1") == ["chat-s2"]
    assert await ids("status=superseded") == ["chat-s1"]
    assert await ids("target=other") == []


async def test_any_open_one_is_approved_and_the_list_begins_with_the_open_ones_by_rank(
    client: Client, daemon: FakeDaemonView
) -> None:
    old = daemon.suggest({"max_num_seqs": 96})
    second = daemon.suggest({"max_num_seqs": 128})
    first = daemon.suggest({"enforce_eager": False})

    listed = (await get(client, "/v1/suggestions"))["suggestions"]
    target = await get(client, "/v1/targets/chat")
    status, answer = await post(client, f"/v1/suggestions/{second.id}/approve", {"digest": second.digest})

    assert [(suggestion["id"], suggestion["rank"]) for suggestion in listed] == [
        (first.id, 1),
        (second.id, 2),
        (old.id, None),
    ]
    assert (target["suggestion"], target["suggestions"]) == (first.id, [first.id, second.id])
    assert (status, answer["status"], answer["rank"]) == (200, "approved", None)


async def test_an_approval_of_a_former_version_is_told_what_changed(
    client: Client, daemon: FakeDaemonView
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    state, digest = daemon.targets()["chat"].state, "sha256:" + "1" * 64
    changed = "a canary of about 600 s instead of 10800 s"
    fresh = replace(made, digest=digest, refreshed_at=daemon.at, changed=changed)
    daemon.set(replace(state, suggestions=Suggestions(open=(fresh,))))

    status, problem = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})

    assert (status, problem["type"]) == (409, "urn:flettner:problem:digest-differs")
    assert changed in problem["detail"]
    assert digest not in problem["detail"]
