"""A complete site whose server takes changes while it runs: its scheduler class is flettner's."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest

from flettner.agent.machine.hot_trial import LEASE_S
from flettner.simulator.traffic import Load
from tests.e2e.conftest import Start
from tests.support.hot_site import LIMITS, HotSiteConfig, cap
from tests.support.real_vllm import ENVIRONMENT, REPOSITORY, real_vllm
from tests.support.rig import Rig, lost, until

STREAMS = Load(streams=16)


@pytest.fixture
def config() -> Iterator[HotSiteConfig]:
    with TemporaryDirectory() as folder:  # pytest's own is longer than the path of a socket may be
        yield HotSiteConfig(folder=folder, at_most_s=1500.0)


async def tried(rig: Rig, config: HotSiteConfig) -> None:
    """A trial whose new value is in force."""
    await rig.serving()
    await rig.change(max_num_active_seqs=16)
    await until(lambda: cap(config), (16).__eq__, "the new value", 300)


async def test_a_killed_daemon_leaves_the_present_value_and_no_lost_request(
    site: Start, config: HotSiteConfig
) -> None:
    rig = await site(config)
    await rig.serving()
    async with rig.clients(load=STREAMS) as traffic:
        await tried(rig, config)
        await rig.kill()
        began_s = asyncio.get_running_loop().time()
        await until(lambda: cap(config), (2).__eq__, "the end of the lease")
        took_s = asyncio.get_running_loop().time() - began_s
        await rig.start()
        rollout = await until(rig.rollout, lambda now: now and now["ended_at"], "the end of the trial")

    assert took_s < LEASE_S + 5.0
    assert (rollout["outcome"], await cap(config)) == ("rolled_back", 2)
    assert lost(traffic) == []
    assert await rig.consistent_server() == "chat-r1"


@pytest.mark.slow
@pytest.mark.timeout(2400)
async def test_real_vllm_keeps_a_better_cap_and_has_it_again_after_a_kill(
    site: Start, config: HotSiteConfig
) -> None:
    command = real_vllm().command(*LIMITS)
    env = (*ENVIRONMENT.items(), ("PYTHONPATH", str(REPOSITORY)))
    config = replace(config, command=command, env=env, start_s=900.0, ttft="2s", stalled_after_s=60.0)
    rig = await site(config)
    rig.patience_s = 1500
    await until(lambda: cap(config), (2).__eq__, "the start of vLLM", 900)
    await rig.serving()
    async with rig.clients(load=STREAMS, timeout_s=600) as traffic:
        rollout = await rig.switch(max_num_active_seqs=16)

    assert (rollout["outcome"], rollout["lost"], await cap(config)) == ("promoted", 0, 16), rollout
    assert lost(traffic) == []

    os.kill(rig.pid("chat-r1"), signal.SIGKILL)
    await until(lambda: cap(config, "chat-r2"), (16).__eq__, "the value in force", 900)
    assert (await rig.serving())["servers"][0]["name"] == "chat-r2"
