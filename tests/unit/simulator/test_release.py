"""A release of a simulated server, which its environment says."""

from pathlib import Path

import pytest
from aiohttp import ClientSession

from flettner.simulator.flags import parse
from flettner.simulator.release import RELEASE, read_release
from flettner.simulator.server import build_server
from tests.unit.simulator.running import running, scrape

NEXT = read_release(
    {RELEASE: "version=0.33.0 errors=0.02 without_flag=max_num_seqs without_metric=vllm:kv_cache"}
)


def test_a_release_has_its_version_its_faults_and_its_own_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = parse(["--model", "tiny"], NEXT)

    assert (flags.simulation.release.version, flags.simulation.faults.errors) == ("0.33.0", 0.02)
    with pytest.raises(SystemExit):
        parse(["--model", "tiny", "--max-num-seqs", "4"], NEXT)
    assert "unrecognized arguments: --max-num-seqs" in capsys.readouterr().err


def test_a_release_may_lack_a_metric() -> None:
    pages = []
    for release in (read_release({}), NEXT):
        engine, _ = build_server(parse(["--model", "tiny"], release), lambda: 0.0)
        pages.append(engine.metrics.text(engine.scheduler))

    assert "vllm:kv_cache_usage_perc" in pages[0]
    assert "vllm:kv_cache_usage_perc" not in pages[1]
    assert "vllm:num_requests_running" in pages[1]


@pytest.mark.parametrize(("fault", "loaded", "answered"), [("refused", 500, 404), ("gone", 200, 404)])
async def test_a_release_may_not_serve_adapters(
    fault: str, loaded: int, answered: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    async with running("--sim-fault", f"*:adapter_{fault}") as server, ClientSession() as session:
        adapter = {"lora_name": "sql", "lora_path": str(tmp_path)}
        async with session.post(f"{server.url}/v1/load_lora_adapter", json=adapter) as answer:
            assert answer.status == loaded
        request = {"model": "sql", "prompt": "a", "max_tokens": 2}
        async with session.post(f"{server.url}/v1/completions", json=request) as answer:
            assert answer.status == answered
        async with session.get(f"{server.url}/v1/models") as answer:
            assert ("sql" in await answer.text()) == (loaded == 200)


async def test_blocks_that_leak_are_never_free_again() -> None:
    async with running("--sim-fault", "*:leak=2") as server, ClientSession() as session:
        for number in range(3):
            request = {"model": "tiny", "prompt": f"{number} " * 100, "max_tokens": 2}
            async with session.post(f"{server.url}/v1/completions", json=request) as answer:
                await answer.read()
        cache = server.engine.scheduler.cache
        page = await scrape(server.url)

    assert cache.blocks - cache.free == 3 * 2
    assert page['vllm:kv_cache_usage_perc{engine="0",model_name="tiny"}'] > 0
