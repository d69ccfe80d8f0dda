"""Which records and states produce which notices, and which receivers get them."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flettner.agent.audit.entries import build_entry
from flettner.agent.domain import events as e
from flettner.agent.domain.effects import Route
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Server
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.server_health import Failure
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestions
from flettner.agent.machine.open_suggestions import Ending
from flettner.agent.machine.step import Machine
from flettner.agent.notify.rules import (
    KINDS,
    SEVERITIES,
    Notice,
    notices_of_record,
    notices_of_states,
    should_send,
)
from tests.support.machine_stories import BLUE, NOON, PLAN, rules
from tests.support.suggestions import MADE, approved

DECIDED = "suggestion.decided"
DOCS = Path(__file__).parents[3] / "docs" / "notifications.md"
SUGGESTION = replace(MADE, status="open")
ROLLOUT = Canary(
    id="chat-o1",
    suggestion=approved(),
    server="chat-r1",
    replicas={},
    plan=PLAN,
    started_at=NOON,
    phase_since=NOON,
)
SERVING = State(target="chat", mode="approve", epoch=3, fleet=Fleet(servers=(BLUE,)))
ENDED = replace(
    ROLLOUT, outcome="rolled_back", why="12 of 40 failed", exposed=RequestCounts(total=40, errors=12)
)


def ended(status: Ending) -> State:
    return replace(SERVING, suggestions=Suggestions(ended=(replace(SUGGESTION, status=status),)))


def kinds(action: str, state: State) -> list[str]:
    return [
        notice.kind for notice in notices_of_record(action, state, NOON) if notice.kind != "target.restored"
    ]


@pytest.mark.parametrize(
    ("action", "state", "kind"),
    [
        ("daemon.started", SERVING, "daemon.restarted"),
        (
            "suggestion.made",
            replace(SERVING, suggestions=Suggestions(open=(SUGGESTION,))),
            "suggestion.waiting",
        ),
        ("suggestion.denied", ended("denied"), DECIDED),
        ("suggestion.expired", ended("expired"), DECIDED),
        ("suggestion.refused", ended("refused"), DECIDED),
        ("traffic.routed", replace(SERVING, rollout=replace(ROLLOUT, parked="blind")), "rollout.held"),
        (
            "rollout.rolling_back",
            replace(SERVING, phase=Phase.ROLLING_BACK, rollout=ENDED),
            "rollout.rolling_back",
        ),
        ("rollout.rolled_back", replace(SERVING, phase=Phase.COOLDOWN, rollout=ENDED), "rollout.rolled_back"),
        ("server.restored", replace(SERVING, rollout=ENDED), "rollout.rolled_back"),
        (
            "saving.ended",
            replace(SERVING, rollout=replace(ROLLOUT, outcome="promoted")),
            "saving.ended",
        ),
        (
            "rollout.promoted",
            replace(SERVING, rollout=replace(ROLLOUT, outcome="promoted")),
            "rollout.promoted",
        ),
        ("target.halted", replace(SERVING, phase=Phase.HALTED), "target.halted"),
        ("server.lost", replace(SERVING, fleet=replace(SERVING.fleet, exited=(BLUE.name,))), "target.lost"),
        (
            "server.lost",
            replace(
                SERVING,
                fleet=replace(
                    SERVING.fleet,
                    servers=(
                        SERVING.fleet.servers[0],
                        Server(name="chat-r9", setting={}),
                    ),
                    exited=(BLUE.name,),
                ),
            ),
            "target.degraded",
        ),
    ],
)
def test_each_record_produces_its_notice(action: str, state: State, kind: str) -> None:
    assert kinds(action, state) == [kind]


def test_only_its_rollback_reports_a_failing_green() -> None:
    """The servers that were there before are an incident of their own."""
    green = Server(name="chat-r1", setting={})
    weights = {BLUE.name: 50, green.name: 50}
    route = Route(number=1, servers=(BLUE, green), weights=weights, fallback=BLUE.name)
    rollout = replace(ROLLOUT, greens=(green,))
    split = replace(SERVING.split, route=route)
    canary = replace(SERVING, phase=Phase.CANARY, rollout=rollout, split=split)
    frozen = Failure(kind="wedged", why="computes no token", since=NOON, times=1)

    assert kinds("traffic.routed", replace(canary, failing={green.name: frozen})) == []
    assert kinds("traffic.routed", replace(canary, failing={BLUE.name: frozen})) == ["server.failing"]


def test_an_ordinary_record_after_a_finished_rollout_produces_no_notice() -> None:
    assert kinds("target.observed", replace(SERVING, rollout=ENDED)) == []


def test_an_approval_produces_a_decision_and_a_start() -> None:
    notices = list(notices_of_record("suggestion.approved", replace(SERVING, rollout=ROLLOUT), NOON))

    assert [notice.kind for notice in notices] == ["suggestion.decided", "rollout.started", "target.restored"]
    assert notices[0].title == "chat: suggestion chat-s1 was approved by alice"
    assert notices[1].place == "/rollouts/chat-o1"


def test_a_suggestion_states_its_change_reason_and_deadline() -> None:
    (notice, _) = notices_of_record(
        "suggestion.made", replace(SERVING, suggestions=Suggestions(open=(SUGGESTION,))), NOON
    )

    assert notice.title == "chat: max_num_seqs 4 → 8 waits for approval until 2030-01-01 13:00 UTC"
    assert notice.text == "3 requests wait. Expected: fewer requests wait. Risk: more KV cache is used."
    assert (notice.place, notice.severity) == ("/suggestions/chat-s1", "info")


@pytest.mark.parametrize(("minutes", "expected"), [(44, []), (45, ["suggestion.expiring"])])
def test_a_suggestion_expires_soon_after_three_quarters_of_its_lifetime(
    minutes: int, expected: list[str]
) -> None:
    states = {"chat": replace(SERVING, suggestions=Suggestions(open=(SUGGESTION,)))}

    notices = notices_of_states(states, NOON + timedelta(minutes=minutes), writable=True, full=False)

    assert [notice.kind for notice in notices if not notice.key.startswith("audit")] == expected


def test_an_approved_suggestion_that_waits_for_the_windows_does_not_expire_soon() -> None:
    approved_one = replace(SUGGESTION, approved_by="alice")
    states = {"chat": replace(SERVING, suggestions=Suggestions(open=(approved_one,)))}

    notices = notices_of_states(states, NOON + timedelta(minutes=50), writable=True, full=False)

    assert [notice for notice in notices if not notice.key.startswith("audit")] == []


def test_an_unwritable_audit_is_critical() -> None:
    notice, _ = notices_of_states({}, NOON, writable=False, full=False)

    assert (notice.kind, notice.severity, notice.ends) == ("audit.unwritable", "critical", False)


def test_a_full_audit_is_an_incident_of_its_own() -> None:
    _, full = notices_of_states({}, NOON, writable=True, full=True)
    _, room = notices_of_states({}, NOON, writable=True, full=False)

    assert (full.kind, full.severity, full.ends, full.key) == ("audit.full", "warning", False, "audit/size")
    assert (room.kind, room.ends, room.key) == ("audit.has_room", True, "audit/size")
    assert not should_send(room, "info", {})
    assert should_send(room, "critical", sent_ids([full]))


def sent_ids(notices: Iterable[Notice]) -> dict[str, str]:
    return {notice.id: "" if notice.ends else notice.key for notice in notices}


def test_a_resolution_is_sent_only_to_receivers_of_its_incident() -> None:
    lost = list(
        notices_of_record(
            "server.lost", replace(SERVING, fleet=replace(SERVING.fleet, exited=(BLUE.name,))), NOON
        )
    )
    (back,) = notices_of_record("target.observed", SERVING, NOON)

    assert [should_send(notice, "critical", {}) for notice in lost] == [True]
    assert should_send(back, "critical", sent_ids(lost))
    assert not should_send(back, "critical", {})
    assert not should_send(back, "info", {})


def test_a_notice_is_sent_once() -> None:
    (notice, _) = notices_of_record(
        "suggestion.made", replace(SERVING, suggestions=Suggestions(open=(SUGGESTION,))), NOON
    )

    assert should_send(notice, "info", {})
    assert not should_send(notice, "info", sent_ids([notice]))
    assert not should_send(notice, "warning", {})


def test_the_records_of_a_machine_run_produce_notices_in_order() -> None:
    machine, state, kinds_sent = Machine(rules()), State(target="chat", mode="approve"), list[str]()
    sent: dict[str, str] = {}
    story = (
        e.AgentStarted(at=NOON, epoch=1, mode="approve", servers=(BLUE,), weights=None),
        e.ChangeAsked(at=NOON, actor="alice", to={"max_num_seqs": 8}, reason="more"),
    )
    for event in story:
        before, (state, effects) = state, machine.step(state, event)
        action = build_entry(before, state, event, effects).action
        for notice in notices_of_record(action, state, NOON):
            if should_send(notice, "info", sent):
                kinds_sent.append(notice.kind)
                sent |= sent_ids([notice])

    assert kinds_sent == ["daemon.restarted"]
    assert state.phase is Phase.CHECKING


def test_the_documentation_has_every_kind_with_its_severity() -> None:
    rows = {
        line.split("|")[1].strip(" `"): line
        for line in DOCS.read_text().splitlines()
        if line.startswith("| `")
    }

    for kind, (severity, when) in KINDS.items():
        assert f"| {severity} | {when} |" in rows[kind]
        assert severity in SEVERITIES
