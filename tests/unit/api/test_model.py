"""What the performance model has learned, in the API."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flettner.agent.domain.prediction_check import LawDrop, PredictionCheck
from flettner.agent.prediction.learned import LearnedModel
from flettner.performance_model.acceptance import Acceptance
from flettner.performance_model.band import Band
from flettner.performance_model.packed_trace import pack
from flettner.performance_model.step_law import StepLaw, UncertainLaw, read_law
from flettner.performance_model.trace import TraceRequest, read_trace
from flettner.vllm_facts.serve_config import ServeConfig
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, get

REQUESTS = [
    TraceRequest(
        arrival_s=second,
        prompt_tokens=100 + second,
        output_tokens=10,
        cached_tokens=50,
        prefix_group="shared",
    )
    for second in range(601)
]
LAW = StepLaw(step_us=17_000, knee=96, token_us=80)
MODEL = LearnedModel(
    target="chat",
    server="chat-r0",
    config=ServeConfig(setting={"max_num_seqs": 64}),
    fitted_at=datetime(2026, 11, 20, 12, tzinfo=UTC),
    trace=pack(REQUESTS),
    counts_from="records",
    servers=2,
    kv_tokens=40_000,
    law=UncertainLaw(law=LAW, draws=(LAW,), source="a test", wait_error=0.1),
    law_source="iteration log",
    rows=420,
    acceptance=Acceptance(itl=(0.01, -0.02), ttft=(0.1, -0.05)),
    outside_s=0.002,
)


async def test_shows_the_law_its_errors_and_the_load(client: Client, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = MODEL

    async with client.get("/v1/targets/chat/model") as response:
        assert response.status == 200
        answer = await response.json()

    assert answer["law"]["knee"] == 96
    assert answer["law"]["coefficients"]["token_us"] == {"value": 80, "low": 80, "high": 80}
    assert (answer["law_source"], answer["windows"], answer["kv_tokens"]) == ("iteration log", 420, 40_000)
    assert read_law(json.dumps(answer["law"])) == MODEL.law
    assert answer["check"]["itl_errors"] == [0.01, -0.02]
    assert answer["load"]["requests"] == 601
    assert answer["load"]["rate_rps"] == pytest.approx(601 / 600)
    assert answer["load"]["servers"] == 2
    assert 0 < answer["load"]["cached_share"] < 1


def a_check(rollout: str, itl_s: float) -> PredictionCheck:
    return PredictionCheck(
        at=MODEL.fitted_at,
        rollout=rollout,
        to={"max_num_seqs": 32},
        requests=500,
        predicted={
            "attainment": Band(value=0.95, low=0.9, high=0.98),
            "itl_p90_s": Band(value=0.03, low=0.027, high=0.033),
        },
        measured={"attainment": 0.93, "itl_p90_s": itl_s},
    )


CHECKS = (a_check("chat-o1", 0.03), a_check("chat-o2", 0.06))


async def test_shows_what_became_of_its_predictions(client: Client, daemon: FakeDaemonView) -> None:
    drop = LawDrop(at=MODEL.fitted_at, why="3 of the last 5 predictions missed their bands")
    daemon.set(replace(daemon.targets()["chat"].state, predictions=CHECKS, law_drop=drop))

    record = (await get(client, "/v1/targets/chat/model"))["record"]

    assert record["bands_hold"] == 0.8
    assert record["coverage"] == {"attainment": 1.0, "itl_p90_s": 0.5}
    assert record["bias"]["attainment"] == pytest.approx(0.02)
    assert record["bias"]["itl_p90_s"] < 0
    assert [(rollout["rollout"], rollout["misses"]) for rollout in record["rollouts"]] == [
        ("chat-o1", False),
        ("chat-o2", True),
    ]
    assert record["rollouts"][1]["predicted"]["itl_p90_s"]["high"] == 0.033
    assert record["dropped"] == drop.why


async def test_says_that_nothing_is_learned_yet(client: Client) -> None:
    answer = await get(client, "/v1/targets/chat/model")
    async with client.get("/v1/targets/chat/trace") as refused:
        assert refused.status == 409

    assert answer["law"] is None
    assert "nothing yet" in answer["why_no_law"]


async def test_the_trace_is_one_that_predict_reads(client: Client, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].model = MODEL

    async with client.get("/v1/targets/chat/trace") as response:
        whole = await response.text()
    async with client.get("/v1/targets/chat/trace?minutes=5") as response:
        last = await response.text()

    assert list(read_trace(whole.splitlines())) == REQUESTS
    assert [request.prompt_tokens for request in read_trace(last.splitlines())] == [
        100 + s for s in range(300, 601)
    ]


async def test_an_unknown_target_has_no_model(client: Client) -> None:
    async with client.get("/v1/targets/other/model") as response:
        assert response.status == 404
