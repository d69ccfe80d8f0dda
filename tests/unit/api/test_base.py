"""An approval is checked against the setting in force at that time: real state machine behind the API."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import build_app
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Role
from flettner.agent.domain.events import Event
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.step import Machine
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.machine_stories import NOON, World, rules
from tests.unit.api.conftest import Client, with_key


@dataclass
class MachineDaemonView(FakeDaemonView):
    """A daemon view that decides with the real state machine."""

    def _after(self, state: State, event: Event) -> State:
        return Machine(rules()).step(state, event)[0]


@pytest.fixture
def daemon() -> FakeDaemonView:
    """A daemon with one open suggestion."""
    daemon = MachineDaemonView(at=NOON)
    daemon.set(World().start().until("proposed").state)
    return daemon


@pytest.fixture
async def client(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> AsyncIterator[Client]:
    server = TestServer(build_app(daemon, tokens))
    async with TestClient(server, headers=bearers["operator"], middlewares=[with_key]) as client:
        yield client


async def approve(client: Client, daemon: FakeDaemonView) -> tuple[int, str]:
    (made,) = daemon.suggestions()
    async with client.post(f"/v1/suggestions/{made.id}/approve", json={"digest": made.digest}) as response:
        return response.status, await response.text()


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
