"""How many replicas a server has, in the API and in `flettner status`."""

from dataclasses import replace

from flettner.tools.cli.resource_text import format_target_line, format_targets
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, get


async def test_a_server_of_several_replicas_says_so(client: Client, daemon: FakeDaemonView) -> None:
    state = daemon.targets()["chat"].state
    assert state.fleet.blue is not None
    daemon.set(replace(state, fleet=replace(state.fleet, servers=(replace(state.fleet.blue, replicas=4),))))

    target = await get(client, "/v1/targets/chat")

    assert [server["replicas"] for server in target["servers"]] == [4]
    assert "chat-r0 (4 replicas) blue" in format_targets([target])
    assert "chat-r0 (4 replicas) blue" in format_target_line(target)


async def test_a_single_engine_is_named_without_a_number(client: Client) -> None:
    target = await get(client, "/v1/targets/chat")

    assert [server["replicas"] for server in target["servers"]] == [1]
    assert "replicas" not in format_targets([target])
