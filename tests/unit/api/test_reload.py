"""POST /v1/reload and `flettner reload`: answers, refusals, exit statuses."""

from typing import Any

import pytest

from flettner.agent.config.changes import ConfigChange, ReloadReport
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import ConfigError, FlettnerError, JournalError, RestartNeededError
from flettner.tools.cli.decide import describe_reload
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client

REPORT = ReloadReport(
    changes=(
        ConfigChange(key="agent.mode", before="approve", after="auto"),
        ConfigChange(key="notify.ops.url_file", before=None, after="***"),
    ),
    waiting=("chat",),
)


async def post(client: Client, headers: dict[str, str]) -> tuple[int, Any]:
    async with client.post("/v1/reload", headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def test_answers_what_changed_and_what_waits(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]]
) -> None:
    daemon.reloaded = REPORT

    status, answer = await post(client, bearers["admin"])

    assert status == 200
    assert answer["waiting"] == ["chat"]
    assert answer["changes"][0] == {"key": "agent.mode", "before": "approve", "after": "auto"}
    assert len(daemon.reloads) == 1
    assert describe_reload(answer).splitlines() == [
        'agent.mode: "approve" -> "auto"',
        'notify.ops.url_file: unset -> "***"',
        "chat: comes into force after the running rollout, which goes on as it was approved",
    ]


@pytest.mark.parametrize(
    ("error", "status", "kind", "detail"),
    [
        (ConfigError("f.toml:\n[agent] x"), 409, "invalid-config", "stays in force. f.toml:\n[agent] x"),
        (RestartNeededError("a restart is needed for api.listen"), 409, "restart-needed", "api.listen"),
        (JournalError("disk full"), 503, "audit-unwritable", "Nothing was changed"),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_reason(
    client: Client,
    daemon: FakeDaemonView,
    bearers: dict[Role, dict[str, str]],
    error: FlettnerError,
    status: int,
    kind: str,
    detail: str,
) -> None:
    daemon.next_error = error

    answered, problem = await post(client, bearers["admin"])

    assert (answered, problem["type"]) == (status, f"urn:flettner:problem:{kind}")
    assert detail in problem["detail"]


def test_an_unchanged_file_is_said() -> None:
    assert describe_reload({"changes": [], "waiting": []}) == "nothing has changed"
