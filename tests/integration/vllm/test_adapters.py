"""LoRA adapters at run time, with real vLLM on the CPU."""

from pathlib import Path

import aiohttp
import pytest

from flettner.agent.domain.model import Adapter, Server
from flettner.vllm_facts.flag_parser import parse_setting
from tests.support.real_upgrades import write_adapter
from tests.support.real_vllm import real_engine


async def served(server: Server, model: str) -> int:
    url, body = f"http://{server.address}/v1/completions", {"model": model, "prompt": "a", "max_tokens": 2}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        return answer.status


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_new_server_serves_the_adapters_that_the_old_one_lists(tmp_path: Path) -> None:
    sql = write_adapter(tmp_path / "sql")
    lora = ("--max-num-seqs", "4", "--enable-lora", "--max-lora-rank", "8")
    async with real_engine(tmp_path / "state", *lora, VLLM_ALLOW_RUNTIME_LORA_UPDATING="True") as engine:
        setting = parse_setting(engine._options.command)
        old = await engine.launch(Server(name="chat-r1", setting=setting), 900)
        assert await engine.adapters(old) == ()
        assert not await engine.put_adapters(old, [sql])
        assert await engine.adapters(old) == (sql,)

        new = await engine.launch(Server(name="chat-r2", setting={**setting, "max_num_seqs": 2}), 900)
        assert await served(new, "sql") == 404
        (refused,) = await engine.put_adapters(new, [sql, Adapter(name="tax", path=str(tmp_path / "tax"))])
        assert "tax" in refused
        assert await engine.adapters(new) == (sql,)
        assert [await served(server, "sql") for server in (old, new)] == [200, 200]
        assert not await engine.put_adapters(new, [], unload=["sql"])
        assert await engine.adapters(new) == ()
