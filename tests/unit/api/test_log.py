"""The log of a rollout's new server in the API: bounded, masked, and never a daemon failure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from flettner.agent.api.routes.log import BYTES, LINES
from flettner.agent.config.listen import Role
from flettner.agent.domain.model import Server
from flettner.agent.domain.state import Phase, State
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client

GREEN = Server(name="chat-r1", setting={"max_num_seqs": 128})


@pytest.fixture
async def rollout(client: Client, daemon: FakeDaemonView) -> str:
    """The id of a rollout whose new server is starting."""
    made = daemon.suggest({"max_num_seqs": 128})
    async with client.post(f"/v1/suggestions/{made.id}/approve", json={"digest": made.digest}) as response:
        assert response.status == 200
    set_greens(daemon, GREEN)
    return "chat-o1"


def set_greens(daemon: FakeDaemonView, *greens: Server) -> State:
    state = daemon.targets()["chat"].state
    daemon.set(replace(state, rollout=replace(state.canary, greens=greens)))
    return daemon.targets()["chat"].state


async def fetch_log(client: Client, rollout: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    async with client.get(f"/v1/rollouts/{rollout}/log", headers=headers) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


def written(daemon: FakeDaemonView, *lines: str) -> None:
    daemon.targets()["chat"].logs["chat-r1"] = lines


async def test_viewer_reads_the_log_of_green(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]], rollout: str
) -> None:
    written(daemon, "loading weights", "capturing graphs")

    answer = await fetch_log(client, rollout, headers=bearers["viewer"])

    assert answer == {
        "rollout": "chat-o1",
        "server": "chat-r1",
        "live": True,
        "at": "2026-11-20T12:00:00Z",
        "lines": ["loading weights", "capturing graphs"],
        "why": "",
    }


async def test_returns_the_last_lines_of_a_long_log(
    client: Client, daemon: FakeDaemonView, rollout: str
) -> None:
    written(daemon, *(f"line {number}" for number in range(1000)))
    by_count = (await fetch_log(client, rollout))["lines"]
    written(daemon, *(f"{number:04}" + "漢" * 496 for number in range(LINES)))
    by_size = (await fetch_log(client, rollout))["lines"]

    assert by_count == [f"line {number}" for number in range(1000 - LINES, 1000)]
    assert by_size[-1].startswith(f"{LINES - 1:04}")
    assert 0 < len(by_size) < LINES
    assert sum(len(line.encode()) + 1 for line in by_size) <= BYTES


async def test_masks_secrets(client: Client, daemon: FakeDaemonView, rollout: str) -> None:
    written(
        daemon,
        "args: ['--api-key', 'PLANTED-1']",
        "HF_TOKEN=PLANTED-2 was refused",
        "http://ann:PLANTED-3@x/",
    )

    lines = (await fetch_log(client, rollout))["lines"]

    assert "PLANTED" not in "".join(lines)
    assert "".join(lines).count("***") == 3


async def test_unreadable_log_is_reported_with_the_reason(
    client: Client, daemon: FakeDaemonView, rollout: str
) -> None:
    daemon.targets()["chat"].unreadable = "docker: the log of 1f2e: no Engine at unix:///run/docker.sock"

    answer = await fetch_log(client, rollout)

    assert (answer["lines"], answer["server"], answer["live"]) == ([], "chat-r1", True)
    assert answer["why"] == f"It cannot be read: {daemon.targets()['chat'].unreadable}"


async def test_reports_an_empty_log_and_a_missing_server(
    client: Client, daemon: FakeDaemonView, rollout: str
) -> None:
    silent = await fetch_log(client, rollout)
    set_greens(daemon)
    absent = await fetch_log(client, rollout)

    assert (silent["lines"], silent["why"]) == ([], "chat-r1 has written nothing.")
    assert (absent["server"], absent["why"]) == (None, "The new server does not run now.")


async def test_reads_the_log_of_the_newest_server(
    client: Client, daemon: FakeDaemonView, rollout: str
) -> None:
    second = replace(GREEN, name="chat-r2")
    daemon.set(replace(set_greens(daemon, GREEN, second), phase=Phase.LAUNCHING))
    daemon.targets()["chat"].logs["chat-r2"] = ("the second one loads",)

    answer = await fetch_log(client, rollout)

    assert (answer["server"], answer["lines"]) == ("chat-r2", ["the second one loads"])


async def test_reads_the_log_of_a_promoted_server_until_the_rollout_ends(
    client: Client, daemon: FakeDaemonView, rollout: str
) -> None:
    state = set_greens(daemon)
    fleet = replace(state.fleet, servers=(GREEN,))
    daemon.set(replace(state, phase=Phase.PROMOTING, fleet=fleet))
    written(daemon, "serving")

    assert (await fetch_log(client, rollout))["lines"] == ["serving"]


async def test_returns_the_stored_lines_of_an_ended_rollout(
    client: Client, daemon: FakeDaemonView, rollout: str
) -> None:
    written(daemon, "somebody else's by now")
    state = daemon.targets()["chat"].state
    daemon.set(replace(state, rollout=replace(state.canary, log=("CUDA out of memory",))))
    daemon.settle(promoted=False)
    stored = await fetch_log(client, rollout)
    daemon.set(replace(state, rollout=replace(state.canary, log=())))
    daemon.settle(promoted=True)
    nothing = await fetch_log(client, rollout)

    assert (stored["live"], stored["server"], stored["lines"]) == (False, None, ["CUDA out of memory"])
    assert (nothing["live"], nothing["lines"]) == (False, [])
    assert nothing["why"].startswith("The rollout has ended")


async def test_unknown_rollout_has_no_log(client: Client) -> None:
    async with client.get("/v1/rollouts/chat-o9/log") as response:
        assert response.status == 404
        assert (await response.json())["type"] == "urn:flettner:problem:no-such-rollout"
