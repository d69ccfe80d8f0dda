"""Permissions of each role for each operation, and none without a token."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flettner.agent.api.app import OPERATIONS
from flettner.agent.api.operations import Operation
from flettner.agent.api.problems import MEDIA
from flettner.agent.api.tokens import RANKS, Tokens
from flettner.agent.config.listen import Role
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client

ROOT = Path(__file__).parents[3]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
NONE = {"Authorization": ""}
ZEROS = "sha256:" + "0" * 64
# responses to an authorised request for a missing object or with an unusable body
LET_IN: Mapping[str, int] = {
    "health": 200,
    "ready": 200,
    "metrics": 200,
    "describe": 200,
    "reloadConfig": 200,
    "whoAmI": 200,
    "beginSignIn": 404,
    "finishSignIn": 404,
    "signOut": 200,
    "listTargets": 200,
    "showSeries": 404,
    "showTarget": 404,
    "showModel": 404,
    "showTrace": 404,
    "showInputs": 404,
    "listScrapeTargets": 200,
    "pauseTarget": 404,
    "resumeTarget": 404,
    "askForChange": 404,
    "undoPromotion": 404,
    "predictCapacity": 404,
    "predictChange": 404,
    "listSuggestions": 200,
    "showSuggestion": 404,
    "approveSuggestion": 404,
    "denySuggestion": 404,
    "showDecision": 401,
    "receiveDecision": 401,
    "listRollouts": 200,
    "showRollout": 404,
    "showRolloutLog": 404,
    "abortRollout": 404,
    "listAudit": 200,
    "followAudit": 200,
}
BODIES: Mapping[str, Any] = {
    "askForChange": {"to": {"max_num_seqs": 128}, "reason": "r"},
    "undoPromotion": {"reason": "r"},
    "predictChange": {"to": {"max_num_seqs": 128}},
    "approveSuggestion": {"digest": ZEROS},
    "denySuggestion": {"reason": "r"},
    "abortRollout": {"reason": "r"},
}


async def status_of(client: Client, operation: Operation, headers: Mapping[str, str]) -> int:
    path = (
        operation.path.replace("{name}", "nowhere").replace("{id}", "nothing").replace("{receiver}", "nobody")
    )
    body = BODIES.get(operation.name)
    async with client.request(operation.method, path, headers=headers, json=body) as response:
        if response.status >= 400:
            problem = await response.json(content_type=MEDIA)
            assert problem["status"] == response.status
            assert len(problem["detail"]) > 20
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"
        assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
        return response.status


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_each_role_has_its_permissions(
    client: Client, bearers: dict[Role, dict[str, str]], operation: Operation, role: Role
) -> None:
    changes = operation.method == "POST" and operation.decides and operation.role is not None
    too_low = (role == "viewer" and changes) or (role != "admin" and operation.role == "admin")
    expected = 403 if too_low else LET_IN[operation.name]

    assert await status_of(client, operation, bearers[role]) == expected


def test_the_page_has_what_each_role_may_do() -> None:
    """A cell says `yes`, with a condition where one is checked beside the role, or `no`."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+ /\S*)` \| (.*) \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)

    assert [row[0] for row in rows] == [f"{operation.method} {operation.path}" for operation in OPERATIONS]
    for operation, (_, *cells, test) in zip(OPERATIONS, rows, strict=True):
        allowed = [operation.role is None or RANKS[role] >= RANKS[operation.role] for role in ROLES]
        assert [cell.startswith("yes") for cell in cells] == allowed, operation.name
        assert {"yes", "no"}.issuperset(cells) == (test == "each role"), operation.name


@pytest.mark.parametrize("already", [False, True], ids=["", "operator paused before"])
async def test_an_operator_cannot_end_the_pause_of_an_admin(
    client: Client, bearers: dict[Role, dict[str, str]], daemon: FakeDaemonView, *, already: bool
) -> None:
    async def post(role: Role, verb: str) -> int:
        async with client.post(f"/v1/targets/chat/{verb}", headers=bearers[role]) as response:
            return response.status

    def paused() -> bool:
        return daemon.targets()["chat"].state.paused

    if already:
        assert await post("operator", "pause") == 200
    assert await post("admin", "pause") == 200
    assert await post("operator", "pause") == 200
    assert (await post("operator", "resume"), paused()) == (403, True)
    assert (await post("admin", "resume"), paused()) == (200, False)
    assert await post("operator", "pause") == 200
    assert (await post("operator", "resume"), paused()) == (200, False)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_only_health_is_served_without_a_token(client: Client, operation: Operation) -> None:
    expected = 200 if operation.name == "health" else 401

    assert await status_of(client, operation, NONE) == expected


async def test_unknown_path_answers_401_without_a_token(client: Client) -> None:
    async with client.get("/v1/nothing", headers=NONE) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "sent",
    ["Basic dXNlcjpwYXNz", "Bearer", "Bearer x", "Bearer fl_00000000_" + "A" * 43, "fl_00000000_" + "A" * 43],
)
async def test_refuses_an_unknown_token_without_echoing_it(client: Client, sent: str) -> None:
    async with client.get("/v1/targets", headers={"Authorization": sent}) as response:
        assert response.status == 401
        assert "AAAA" not in await response.text()


async def test_reload_refuses_a_revoked_token(
    client: Client, tokens: Tokens, bearers: dict[Role, dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text("")
    tokens.reload()

    async with client.get("/v1/targets", headers=bearers["admin"]) as response:
        assert response.status == 401


async def test_403_names_the_required_role(
    client: Client, bearers: dict[Role, dict[str, str]], daemon: FakeDaemonView
) -> None:
    async with client.post("/v1/targets/chat/pause", headers=bearers["viewer"]) as response:
        problem = await response.json(content_type=MEDIA)

    assert problem["detail"] == "This needs the role operator; the token's role is viewer."
    assert not daemon.targets()["chat"].state.paused


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "[::1]:8090", "127.0.0.1"])
async def test_accepts_loopback_host_names(client: Client, host: str) -> None:
    async with client.get("/healthz", headers={"Host": host}) as response:
        assert response.status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "a@localhost", "localhost."])
async def test_refuses_a_rebound_host_name(client: Client, host: str) -> None:
    async with client.get("/v1/targets", headers={"Host": host}) as response:
        assert response.status == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
    ids=str,
)
async def test_refuses_a_cross_site_request(
    client: Client, daemon: FakeDaemonView, headers: dict[str, str]
) -> None:
    async with client.post("/v1/targets/chat/pause", headers=headers) as response:
        assert response.status == 403
    assert not daemon.targets()["chat"].state.paused


async def test_accepts_a_same_origin_request(client: Client, daemon: FakeDaemonView) -> None:
    origin = f"http://{client.host}:{client.port}"
    async with client.post(
        "/v1/targets/chat/pause", headers={"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    ) as response:
        assert response.status == 200
    assert daemon.targets()["chat"].state.paused
