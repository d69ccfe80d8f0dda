"""Only an admin proposes and approves another image, program, environment or model."""

from collections.abc import Callable
from typing import Any

import pytest

from flettner.agent.api.problems import MEDIA
from flettner.agent.config.listen import Role
from flettner.vllm_facts.values import Value
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client

Bearers = dict[Role, dict[str, str]]
UPGRADES: tuple[dict[str, Value], ...] = (
    {"image": "vllm/vllm-openai:v0.33.0"},
    {"command": "/opt/vllm-0.33/bin/vllm"},
    {"env.LD_PRELOAD": "/tmp/evil.so"},  # noqa: S108 - never opened
    {"env.LD_PRELOAD": None},
    {"model": "evil/model"},
    {"revision": "refs/pr/5"},
    {"tokenizer": "evil/model"},
    {"max_num_seqs": 8, "image": "evil"},
)


async def post(
    client: Client, path: str, body: object, headers: dict[str, str]
) -> tuple[int, dict[str, Any]]:
    async with client.post(path, json=body, headers=headers) as response:
        media = MEDIA if response.status >= 400 else "application/json"
        return response.status, await response.json(content_type=media)


@pytest.mark.parametrize("to", UPGRADES, ids=str)
async def test_a_stolen_token_of_an_operator_upgrades_nothing(
    client: Client, daemon: FakeDaemonView, bearers: Bearers, to: dict[str, Value]
) -> None:
    before = daemon.targets()["chat"].state
    body = {"to": to, "reason": "newer", "accept_different_answers": True}

    status, answer = await post(client, "/v1/targets/chat/suggestions", body, bearers["operator"])

    assert (status, answer["type"]) == (403, "urn:flettner:problem:admin-only")
    assert "takes the role admin, both to propose and to approve it" in answer["detail"]
    assert daemon.targets()["chat"].state == before


async def test_an_operator_does_not_approve_what_an_admin_proposed(client: Client, bearers: Bearers) -> None:
    body = {"to": {"image": "vllm/vllm-openai:v0.33.0"}, "reason": "newer"}
    status, made = await post(client, "/v1/targets/chat/suggestions", body, bearers["admin"])
    path, digest = f"/v1/suggestions/{made['id']}/approve", {"digest": made["digest"]}

    refused, problem = await post(client, path, digest, bearers["operator"])
    approved, _ = await post(client, path, digest, bearers["admin"])

    assert (status, made["to"]) == (201, body["to"])
    assert (refused, problem["type"]) == (403, "urn:flettner:problem:admin-only")
    assert approved == 200


async def test_a_variable_has_a_plain_name(client: Client, bearers: Bearers) -> None:
    body = {"to": {"env.A=B": "1"}, "reason": "newer"}

    status, _ = await post(client, "/v1/targets/chat/suggestions", body, bearers["admin"])

    assert status == 422


@pytest.mark.parametrize(
    "change", [str.upper, lambda d: d[:-1], lambda d: f"{d} ", lambda d: d[7:], lambda d: f"{d}\0"]
)
async def test_a_digest_that_only_resembles_the_one_shown_approves_nothing(
    client: Client, daemon: FakeDaemonView, bearers: Bearers, change: Callable[[str], str]
) -> None:
    body = {"to": {"image": "vllm/vllm-openai:v0.33.0"}, "reason": "newer"}
    _, made = await post(client, "/v1/targets/chat/suggestions", body, bearers["admin"])
    before = daemon.targets()["chat"].state

    status, _ = await post(
        client, f"/v1/suggestions/{made['id']}/approve", {"digest": change(made["digest"])}, bearers["admin"]
    )

    assert status in {400, 409, 422}
    assert daemon.targets()["chat"].state == before


async def test_how_much_of_an_image_is_pulled_is_told_with_the_state(
    client: Client, daemon: FakeDaemonView, bearers: Bearers
) -> None:
    daemon.targets()["chat"].progress = "pulls vllm/vllm-openai:v0.33.0: 2.5 of 9.8 GB"

    async with client.get("/v1/targets/chat", headers=bearers["viewer"]) as response:
        document = await response.json()

    assert document["note"].endswith("pulls vllm/vllm-openai:v0.33.0: 2.5 of 9.8 GB")
