"""The process engine with real vLLM on the CPU: one story, minutes long."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actuators.host import ownership_env
from actuators.process.plugin import ProcessEngine
from agent.domain.errors import ActError
from agent.domain.model import Server
from agent.domain.ports import Site
from agent.quality.comparison import compare
from agent.quality.golden_prompts import PROMPTS
from tests.support.process_rig import free_ports
from tests.support.real_vllm import ENVIRONMENT, real_vllm
from vllm_facts.flags import setting_of

log = logging.getLogger(__name__)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ProcessEngine]:
    options = ProcessEngine(
        command=real_vllm().command("--max-num-seqs", "16"), env=ENVIRONMENT, ports=free_ports(), stop_s=30.0
    )
    engine = options.bind(Site(target="chat", state_dir=tmp_path, epoch=1))
    yield engine
    for server in await engine.observe():
        await engine.retire(server)


@pytest.mark.real_vllm
@pytest.mark.timeout(2400)
async def test_real_vllm_is_started_warmed_up_refused_and_ended(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    assert list(await engine.problems()) == []
    setting = {**setting_of(engine.command), "max_num_seqs": 2}

    with pytest.raises(
        ActError, match=r"code 2: unknown flag.*: .*unrecognized arguments: --swap-space"
    ) as refused:
        await engine.launch(Server(name="chat-r1", setting={**setting, "swap_space": 4}), 600)
    log.info("unknown flag: %s", refused.value.why)
    with pytest.raises(ActError, match=r"code 1: .*max_num_seqs") as refused:
        await engine.launch(Server(name="chat-r2", setting={**setting, "max_num_seqs": 0}), 600)
    log.info("bad value: %s", refused.value.why)
    server = await engine.launch(Server(name="chat-r3", setting=setting), 600)
    log.info("healthy: %s", server)

    await engine.warm_up(server, 6, 300)
    log.info("warm")

    said, again = [await engine.answers(server, PROMPTS, 300) for _ in range(2)]
    assert all(len(one.tokens) == len(one.logprobs) == one.length for one in said)
    assert any(one.logprobs for one in said)
    assert compare(said, again, said).ok

    assert await engine.busy(server) == 0
    assert list(await engine.observe()) == [server]
    site = Site(target="chat", state_dir=tmp_path, epoch=1)
    assert len(ownership_env.members(site, "chat-r3")) > 1  # the API server and its engine core
    await engine.retire(server)
    log.info("gone")
    assert ownership_env.members(site, "chat-r3") == []
    assert list(await engine.observe()) == []
