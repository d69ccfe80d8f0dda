"""The process engine with real vLLM on the CPU."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flettner.actuators.host import ownership_env
from flettner.actuators.process.engine import ProcessEngine
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.quality.comparison import compare
from flettner.agent.quality.golden_prompts import PROMPTS
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.live_limits import SCHEDULER_CLASS
from flettner.vllm_facts.values import Setting, Value
from tests.support.real_vllm import real_engine

pytestmark = pytest.mark.timeout(1200)


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
    await engine.warm_up(server, 6, 300)
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
