"""What lint finds in the flags in force, in the API and in `flettner status`."""

import pytest

from flettner.tools.cli.resource_text import format_targets
from flettner.vllm_facts.serve_config import Finding
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, get

SLOW = Finding(
    rule="A1",
    klass="auto",
    severity="warning",
    why="async_scheduling is off",
    source="vLLM docs",
    to={"async_scheduling": None},
)
REMARK = Finding(rule="X1", why="a remark", source="vLLM docs")


@pytest.fixture
def daemon() -> FakeDaemonView:
    daemon = FakeDaemonView()
    daemon.targets()["chat"].findings = (SLOW, REMARK)
    return daemon


async def test_a_target_lists_what_is_found_and_status_shows_the_warnings(client: Client) -> None:
    target = await get(client, "/v1/targets/chat")

    assert target["findings"][0] == {
        "rule": "A1",
        "slug": "async-scheduling-off",
        "severity": "warning",
        "class": "auto",
        "to": {"async_scheduling": None},
        "why": "async_scheduling is off",
        "expects": "",
        "source": "vLLM docs",
    }
    assert [finding["rule"] for finding in target["findings"]] == ["A1", "X1"]
    text = format_targets([target])
    assert "chat: flags, rule A1 async-scheduling-off: async_scheduling is off" in text
    assert "a remark" not in text
