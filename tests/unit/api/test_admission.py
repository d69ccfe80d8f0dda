"""Changes that an operator's token cannot request: real state machine and guard behind the real API."""

from dataclasses import replace

import pytest

from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase
from flettner.vllm_facts.values import Value
from tests.support.fake_daemon_view import NOON, PLAN, MachineDaemonView
from tests.support.suggestions import approved
from tests.unit.api.conftest import Client, post

PATH = "/v1/targets/chat/suggestions"


@pytest.fixture
def daemon() -> MachineDaemonView:
    return MachineDaemonView()


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ({"trust_remote_code": True}, "[targets.bounds.trust_remote_code] under `allowed`"),
        ({"host": "0.0.0.0"}, "[targets.bounds.host] under `allowed`"),  # noqa: S104 - never bound
        ({"middleware": "evil.Middleware"}, "[targets.bounds.middleware] under `allowed`"),
        ({"chat_template": "/etc/passwd"}, "[targets.bounds.chat_template] under `allowed`"),
        ({"tool_parser_plugin": "/evil.py"}, "[targets.bounds.tool_parser_plugin] under `allowed`"),
        ({"max_num_seqs": 32, "enable_log_outputs": True}, "a change of enable_log_outputs was requested"),
        ({"max_num_seqs": 8.5}, "max_num_seqs=8.5 was requested: max_num_seqs is a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs=true was requested: max_num_seqs is a whole number"),
        ({"max_num_seqs": "8"}, 'max_num_seqs="8" was requested: max_num_seqs is a whole number'),
        ({"max_num_seqs": -5}, "max_num_seqs=-5 was requested: max_num_seqs is at least 1"),
    ],
)
async def test_answers_409_to_an_inadmissible_change(
    client: Client, daemon: MachineDaemonView, to: dict[str, Value], message: str
) -> None:
    before = daemon.targets()["chat"].state

    status, problem = await post(client, PATH, {"to": to, "reason": "because"})

    after = daemon.targets()["chat"].state
    assert status == 409
    assert problem["type"].endswith("refused-by-guard")
    assert message in problem["detail"]
    assert (after.phase, after.suggestions.pending, after.fleet) == (before.phase, (), before.fleet)
    assert daemon.suggestions() == []


async def test_a_value_outside_the_bounds_is_refused_and_not_changed_into_another(
    client: Client, daemon: MachineDaemonView
) -> None:
    status, problem = await post(client, PATH, {"to": {"max_num_seqs": 1000}, "reason": "more"})

    assert status == 409
    assert "max_num_seqs=1000 was requested, at most 64 is allowed" in problem["detail"]
    assert daemon.suggestions() == []


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (Phase.CANARY, "The rollout chat-o1 is in the phase canary, and a target has one change at a time"),
        (Phase.PROMOTING, "The rollout chat-o1 is in the phase promoting"),
        (Phase.RESTORING, "A server that exited is being replaced"),
        (Phase.HALTED, "The target is halted, so no change can be proposed: ask for help"),
    ],
)
async def test_refuses_a_change_during_a_rollout_with_that_reason(
    client: Client, daemon: MachineDaemonView, phase: Phase, message: str
) -> None:
    rollout = Canary(
        id="chat-o1",
        suggestion=approved(),
        server="chat-r1",
        replicas={},
        plan=PLAN,
        started_at=NOON,
        phase_since=NOON,
    )
    busy = replace(daemon.targets()["chat"].state, phase=phase, rollout=rollout, note="ask for help")
    daemon.set(busy)

    status, problem = await post(client, PATH, {"to": {"max_num_seqs": 32}, "reason": "less"})

    assert (status, problem["type"]) == (409, "urn:flettner:problem:busy")
    assert message in problem["detail"]
    assert daemon.targets()["chat"].state == busy


async def test_checks_a_change_of_a_tunable_knob(client: Client, daemon: MachineDaemonView) -> None:
    status, answer = await post(client, PATH, {"to": {"max_num_seqs": 32}, "reason": "less"})

    assert status == 201
    assert answer["to"] == {"max_num_seqs": 32}
    assert [dict(suggestion.proposal.to) for suggestion in daemon.suggestions()] == [{"max_num_seqs": 32}]
