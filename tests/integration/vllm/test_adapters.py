"""LoRA adapters at run time, with real vLLM on the CPU."""

import json
import struct
from pathlib import Path

import aiohttp
import pytest

from flettner.agent.domain.model import Adapter, Server
from flettner.vllm_facts.flag_parser import parse_setting
from tests.support.real_vllm import real_engine

RANK, HIDDEN = 4, 256  # the tiny model's


def write_adapter(folder: Path) -> Adapter:
    """A LoRA of the first layer's queries, in the format of safetensors: header, then the numbers."""
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    layer, header, data = "base_model.model.model.layers.0.self_attn.q_proj", {}, b""
    for side, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (HIDDEN, RANK))):
        numbers = struct.pack(f"<{RANK * HIDDEN}f", *([0.01] * RANK * HIDDEN))
        offsets = [len(data), len(data) + len(numbers)]
        header[f"{layer}.{side}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        data += numbers
    head = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return Adapter(name=folder.name, path=str(folder))


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
