"""Predictions in the API: for viewers, without a decision, and with a reason where there are none."""

import pytest

from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import WorkerError
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.learned import learned_model
from tests.unit.api.conftest import Client, post

PATH = "/v1/targets/chat/predictions"


@pytest.fixture(autouse=True)
def _has_learned(daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = learned_model(1.0, seconds=150.0, max_num_seqs=8)


async def test_a_viewer_asks_what_would_happen(
    client: Client, bearers: dict[Role, dict[str, str]], daemon: FakeDaemonView
) -> None:
    before = daemon.targets()["chat"].state

    async with client.post(
        PATH, json={"to": {"max_num_seqs": 64}, "rate": 1.5}, headers=bearers["viewer"]
    ) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()

    assert answer["to"] == {"max_num_seqs": 64}
    assert set(answer["now"]["ttft_p90_s"]) == {"value", "low", "high"}
    assert len(answer["curve"]) == 7
    assert daemon.targets()["chat"].state is before


async def test_a_viewer_asks_for_the_capacity(
    client: Client, bearers: dict[Role, dict[str, str]], daemon: FakeDaemonView
) -> None:
    daemon.suggest({"max_num_seqs": 64})

    async with client.get("/v1/targets/chat/capacity", headers=bearers["viewer"]) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()

    assert answer["share"] == 0.95
    assert set(answer["now"]["rate_rps"]) == {"value", "low", "high"}
    assert [each["suggestion"] for each in answer["suggestions"]] == ["chat-s1"]
    daemon.targets()["chat"].model = None
    async with client.get("/v1/targets/chat/capacity") as response:
        assert response.status == 409


async def test_without_a_law_it_says_why(client: Client, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = None

    status, problem = await post(client, PATH, {})

    assert (status, problem["type"]) == (409, "urn:flettner:problem:no-prediction")
    assert "nothing is learned of chat yet" in problem["detail"]


async def test_a_busy_worker_is_asked_again_later(client: Client, daemon: FakeDaemonView) -> None:
    daemon.next_error = WorkerError("another prediction for this target is being computed")

    async with client.post(PATH, json={}) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"


@pytest.mark.parametrize("body", [{"rate": 0}, {"rate": 1e9}, {"prompt": "2"}, {"to": {"A": 1}}, {"x": 1}])
async def test_a_body_of_another_shape_is_refused(client: Client, body: dict[str, object]) -> None:
    assert (await post(client, PATH, body))[0] == 422
