"""The load against the simulated server."""

from collections.abc import Sequence
from dataclasses import replace

from flettner.performance_model.outcome import Goals
from flettner.performance_model.trace import TraceRequest
from flettner.tools.tuning.replay import Served, replay
from flettner.tools.tuning.session import summarise
from tests.unit.simulator.running import running, scrape

TRACE = [TraceRequest(arrival_s=0.05 * at, prompt_tokens=20 + at, output_tokens=5) for at in range(10)]
TOTAL = '{engine="0",model_name="tiny"}'


async def test_a_server_gets_the_tokens_of_the_trace_and_its_answers_are_measured() -> None:
    async with running() as server:
        served = await replay(server.url, TRACE)
        totals = await scrape(server.url)

    assert totals[f"vllm:prompt_tokens_total{TOTAL}"] == sum(request.prompt_tokens for request in TRACE)
    assert [request.output_tokens for request in served] == [5] * 10
    assert all(
        not request.why and 0 < request.ttft_s < request.e2e_s and request.itl_s > 0 for request in served
    )


async def test_prompts_of_a_group_begin_alike_and_other_series_differ() -> None:
    grouped = [replace(TRACE[0], prompt_tokens=800, cached_tokens=640, prefix_group="a") for _ in range(3)]
    async with running("--enable-prefix-caching") as server:
        await replay(server.url, grouped[:1])
        await replay(server.url, grouped[:1], series="warm-up")
        totals = await scrape(server.url)

    assert totals[f"vllm:prefix_cache_hits_total{TOTAL}"] == 640


async def test_a_refused_request_is_failed_and_no_good_one() -> None:
    long = replace(TRACE[0], prompt_tokens=9000)
    async with running() as server:
        served = await replay(server.url, [long, TRACE[1]])
    figures = summarise(served, Goals(ttft_s=100.0))

    assert "maximum context length" in served[0].why
    assert (figures["attainment"], figures["failed_share"]) == (0.5, 0.5)


def answered(ttft_s: float, itl_s: float) -> Served:
    return Served(
        arrival_s=1.0, prompt_tokens=1, output_tokens=3, ttft_s=ttft_s, itl_s=itl_s, e2e_s=ttft_s + 2 * itl_s
    )


def test_a_request_must_meet_all_objectives() -> None:
    served: Sequence[Served] = [answered(0.1, 0.01), answered(0.1, 0.5), answered(2.0, 0.01)]

    assert summarise(served, Goals(ttft_s=1.0, itl_s=0.1))["attainment"] == 1 / 3
    assert summarise(served, Goals(ttft_s=1.0))["attainment"] == 2 / 3
