"""The exposition against names, types and labels recorded from a real vLLM 0.32 (its CPU build)."""

import re
from pathlib import Path

from aiohttp import ClientSession

from tests.unit.simulator.running import running, scrape

RECORDED = Path(__file__).with_name("vllm_0_32_metrics.txt")
NOT_EXACT = {
    "vllm:cache_config_info"
}  # its labels are the fields of vLLM's CacheConfig: the simulator has a subset


async def exposition(url: str) -> str:
    async with ClientSession() as session, session.get(f"{url}/metrics") as response:
        return await response.text()


async def test_names_types_and_labels_are_those_of_a_real_server() -> None:
    real = {}
    for line in RECORDED.read_text().splitlines():
        name, kind, about = line.split()
        real[name] = (kind, set(about.split(",")) - {"-"})
    async with running() as server, ClientSession() as session:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
        async with session.post(f"{server.url}/v1/completions", json=body) as response:
            assert response.status == 200
        text = await exposition(server.url)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^([\w:]+?)(?:_bucket|_sum|_count)?\{(.*)\} ", text, re.MULTILINE):
        labels.setdefault(name, set()).update(set(re.findall(r'(\w+)="', inside)) - {"le"})

    assert len(kinds) > 25
    for name, kind in kinds.items():
        wanted_kind, wanted_labels = real[name]
        assert kind == wanted_kind, name
        if name in NOT_EXACT:
            assert labels[name] <= wanted_labels, name
        else:
            assert labels.get(name, set()) == wanted_labels, name


async def test_counters_equal_the_sent_requests() -> None:
    async with running() as server, ClientSession() as session:
        for _ in range(3):
            body = {"model": "tiny", "prompt": "x" * 400, "max_tokens": 10, "ignore_eos": True}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                await response.read()
        seen = await scrape(server.url)
    labels = 'engine="0",model_name="tiny"'

    assert seen[f"vllm:prompt_tokens_total{{{labels}}}"] == 300
    assert seen[f"vllm:generation_tokens_total{{{labels}}}"] == 30
    assert seen[f"vllm:prefix_cache_queries_total{{{labels}}}"] == 300
    assert seen[f"vllm:prefix_cache_hits_total{{{labels}}}"] == 2 * 96
    assert seen['vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'] == 3
    assert seen[f"vllm:time_to_first_token_seconds_count{{{labels}}}"] == 3
    assert seen[f"vllm:inter_token_latency_seconds_count{{{labels}}}"] == 27
    assert seen[f"vllm:iteration_tokens_total_sum{{{labels}}}"] == 300 - 192 + 30
    assert seen['vllm:e2e_request_latency_seconds_bucket{engine="0",model_name="tiny",le="+Inf"}'] == 3
    assert seen['http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'] == 3
    assert seen["process_start_time_seconds"] == 1_800_000_000.0


async def test_disable_log_stats_removes_the_vllm_metrics() -> None:
    async with running("--disable-log-stats") as server:
        text = await exposition(server.url)

    assert "vllm:" not in text
    assert "process_start_time_seconds" in text
