"""An approval is checked against the setting in force at that time: real state machine behind the API."""

from dataclasses import replace

import pytest

from flettner.agent.domain.state import Phase
from tests.support.fake_daemon_view import FakeDaemonView, MachineDaemonView
from tests.support.machine_stories import NOON, World
from tests.unit.api.conftest import Client, post


@pytest.fixture
def daemon() -> FakeDaemonView:
    """A daemon with one open suggestion."""
    daemon = MachineDaemonView(at=NOON)
    daemon.set(World().start().until("proposed").state)
    return daemon


async def approve(client: Client, daemon: FakeDaemonView) -> tuple[int, str]:
    (made,) = daemon.suggestions()
    status, answer = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})
    return status, str(answer)


async def test_starts_the_preflighted_change_if_the_setting_is_unchanged(
    client: Client, daemon: FakeDaemonView
) -> None:
    assert (await approve(client, daemon))[0] == 200
    assert daemon.targets()["chat"].state.phase is Phase.LAUNCHING


async def test_refuses_the_preflighted_change_if_the_setting_changed(
    client: Client, daemon: FakeDaemonView
) -> None:
    state = daemon.targets()["chat"].state
    assert state.fleet.blue is not None
    daemon.set(
        replace(
            state,
            fleet=replace(
                state.fleet,
                servers=(
                    replace(state.fleet.blue, setting={**state.fleet.blue.setting, "max_model_len": 4096}),
                ),
            ),
        )
    )

    status, message = await approve(client, daemon)

    assert status == 409
    assert "made for a setting that is no longer in force" in message
    assert daemon.targets()["chat"].state.rollout is None
    assert (await approve(client, daemon))[0] == 409  # and it stays refused: it is superseded
