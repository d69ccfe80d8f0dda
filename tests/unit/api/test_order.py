"""A change of one target may come after that of another one."""

from dataclasses import replace
from typing import Any

import pytest

from flettner.agent.api.problems import MEDIA
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.state import State
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client


@pytest.fixture
def made(daemon: FakeDaemonView) -> str:
    """The suggestion of another target."""
    blue = replace(daemon.targets()["chat"].state.fleet.servers[0], name="code-r0")
    daemon.target = "code"
    daemon.set(State(target="code", mode="approve", fleet=Fleet(servers=(blue,))))
    return daemon.suggest({"max_num_seqs": 128}).id


async def ask(client: Client, after: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    body = {"to": {"max_num_seqs": 32}, "reason": "newer", "after": after}
    async with client.post("/v1/targets/chat/suggestions", json=body, headers=headers) as response:
        media = MEDIA if response.status >= 400 else "application/json"
        return response.status, await response.json(content_type=media)


async def test_a_change_comes_after_that_of_another_target(
    client: Client, made: str, bearers: dict[str, dict[str, str]]
) -> None:
    status, answer = await ask(client, made, bearers["operator"])

    assert (status, answer["after"]) == (201, made)


@pytest.mark.parametrize(
    ("after", "status", "why"),
    [
        ("none-s1", 404, "There is no target 'none'"),
        ("code-s9", 409, "Nothing can come after it: code-s9 ended without a promotion."),
        ("chat-s2", 409, "chat-s2 is of chat itself: name a suggestion of another target in `after`."),
    ],
)
@pytest.mark.usefixtures("made")
async def test_a_change_comes_after_no_other(
    client: Client, bearers: dict[str, dict[str, str]], after: str, status: int, why: str
) -> None:
    answered, problem = await ask(client, after, bearers["operator"])

    assert answered == status
    assert why in problem["detail"]
