"""The process engine with real vLLM on the CPU."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.host import ownership_env
from flettner.actuators.process.engine import ProcessEngine
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.quality.comparison import compare
from flettner.agent.quality.golden_prompts import PROMPTS
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.live_limits import SCHEDULER_CLASS
from flettner.vllm_facts.values import Setting, Value
from tests.support.real_vllm import real_engine

pytestmark = pytest.mark.timeout(1200)

SYSTEM = "You answer kindly and in few words. " * 60  # some blocks of the KV cache
HITS = re.compile(r"^vllm:prefix_cache_hits_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


async def count_hits(server: Server, system: str) -> float:
    """The tokens that a chat with this system prompt found in the prefix cache."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello!"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 1}
    async with aiohttp.ClientSession(f"http://{server.address}") as session:

        async def hits() -> float:
            async with session.get("/metrics") as answer:
                return sum(map(float, HITS.findall(await answer.text())))

        before = await hits()
        async with session.post("/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
        return await hits() - before


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ProcessEngine]:
    async with real_engine(tmp_path, "--max-num-seqs", "16") as engine:
        yield engine


@pytest.mark.smoke
async def test_launches_warms_up_examines_and_retires_a_server(engine: ProcessEngine, tmp_path: Path) -> None:
    assert list(await engine.problems()) == []
    cap: Setting = {"max_num_seqs": 2, "scheduler_cls": SCHEDULER_CLASS}
    setting = {**parse_setting(engine._options.command), **cap}

    server = await engine.launch(Server(name="chat-r1", setting=setting), 900)
    await engine.warm_up(server, 6, 300, (), (SharedPrefix(text=SYSTEM, chat=True),))
    assert await count_hits(server, SYSTEM) > len(SYSTEM.split()) / 2, "a client's first request finds it"
    first, second = [await engine.answers(server, PROMPTS, 300) for _ in range(2)]

    assert all(len(answer.tokens) == len(answer.logprobs) == answer.length for answer in first)
    assert any(answer.logprobs for answer in first)
    assert compare(first, second, first).ok
    assert await engine.busy(server) == 0
    assert list(await engine.observe()) == [server]
    assert server.hot is not None
    assert server.hot.limits["max_num_active_seqs"][1] == 2
    site = Site(target="chat", state_dir=tmp_path, epoch=1)
    assert len(ownership_env.members(site, "chat-r1")) > 1  # the API server and its engine core
    await engine.retire(server)
    assert ownership_env.members(site, "chat-r1") == []
    assert list(await engine.observe()) == []


@pytest.mark.slow
async def test_a_stopped_server_is_started_again_at_its_address(engine: ProcessEngine) -> None:
    setting = {**parse_setting(engine._options.command), "max_num_seqs": 2}
    server = await engine.launch(Server(name="chat-r1", setting=setting), 900)

    how = await engine.stop(server)
    observed = list(await engine.observe())
    again = await engine.launch(server, 900)
    await engine.warm_up(again, 2, 300)

    assert "it was started without --enable-sleep-mode" in str(how)
    assert observed == []
    assert again == server


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"swap_space": 4}, r"code 2: unknown flag.*: .*unrecognized arguments: --swap-space"),
        ({"max_num_seqs": 0}, r"code 1: .*max_num_seqs"),
    ],
    ids=["unknown flag", "bad value"],
)
async def test_a_launch_that_vllm_rejects_names_the_flag(
    engine: ProcessEngine, flags: dict[str, Value], why: str
) -> None:
    setting = {**parse_setting(engine._options.command), **flags}

    with pytest.raises(ActError, match=why):
        await engine.launch(Server(name="chat-r1", setting=setting), 900)
