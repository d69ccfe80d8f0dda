"""A container gets flettner's scheduler class by one approved restart, and then takes changes as it runs."""

import pytest

from flettner.vllm_facts.live_limits import SCHEDULER_CLASS
from tests.e2e.conftest import StartDocker
from tests.e2e.docker_rig import FLAGS, SOME, DockerSiteConfig
from tests.support.docker_site import Bench
from tests.support.rig import lost


@pytest.mark.timeout(180)
async def test_an_adopted_container_gets_the_class_by_one_restart(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = await bench.serving(*FLAGS)
    rig = await docker_site(DockerSiteConfig(allowed=(("scheduler_cls", SCHEDULER_CLASS),)), blue)
    before = (await rig.serving())["servers"][0]
    cold = await rig.propose(max_num_active_seqs=6)

    async with rig.users(SOME) as traffic:
        rollout = await rig.switch(scheduler_cls=SCHEDULER_CLASS)
        await rig.serving()

    assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout
    assert lost(traffic) == []
    assert "scheduler_cls" not in before["setting"]
    assert cold["preflight"]["strategy"] == "surge"
    hot = await rig.propose(max_num_active_seqs=6)
    assert hot["preflight"]["strategy"] == "hot", hot
