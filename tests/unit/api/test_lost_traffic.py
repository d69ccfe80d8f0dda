"""A target whose split cannot be kept in force is shown as such, and never as one that is observed."""

from dataclasses import replace

import pytest

from flettner.agent.domain.reading import SourceState
from flettner.agent.domain.state import Phase
from flettner.tools.cli.resource_text import format_target_line, format_targets
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, get

WHY = "process 7 (squatter) of user 65534 listens on 127.0.0.1:8080"


@pytest.fixture
def daemon() -> FakeDaemonView:
    daemon = FakeDaemonView()
    lost = SourceState(at=daemon.at, source="traffic", available=False, why=WHY)
    daemon.targets()["chat"].sources = {lost.source: lost}
    return daemon


@pytest.mark.parametrize("phase", [Phase.OBSERVING, Phase.COOLDOWN, Phase.PROPOSED])
async def test_lost_traffic_is_the_phase_and_its_reason_is_said_once(
    daemon: FakeDaemonView, client: Client, phase: Phase
) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, phase=phase, note="chat-r0 serves"))

    target = await get(client, "/v1/targets/chat")

    assert target["phase"] == "traffic_lost"
    assert target["note"] == f"traffic lost: {WHY}; chat-r0 serves"
    text = format_targets([target])
    assert "traffic lost  " in text
    assert text.count("process 7 (squatter)") == 1
    assert "chat: traffic lost, " in format_target_line(target)


async def test_a_rollout_keeps_its_phase_and_the_note_says_what_is_lost(
    daemon: FakeDaemonView, client: Client
) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, phase=Phase.CANARY))

    target = await get(client, "/v1/targets/chat")

    assert target["phase"] == "canary"
    assert target["note"].startswith("traffic lost: ")
