"""A full rollout with real vLLM in containers: adopted, measured, suggested, canary, promoted."""

import pytest

from flettner.simulator.traffic import Load
from tests.e2e.conftest import StartDocker
from tests.e2e.docker_rig import DockerRig, DockerSiteConfig
from tests.support.docker_site import Bench
from tests.support.rig import Document, lost, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

START_S = 600.0  # a start needs a minute of CPU time


async def test_suggests_tries_and_promotes_a_higher_max_num_seqs(
    bench: Bench, docker_site: StartDocker
) -> None:
    blue = await bench.run("--max-num-seqs", "2", image=await bench.real())
    await bench.healthy(blue, START_S)
    site_config = DockerSiteConfig(
        policies=True,
        steps=((50, 20, 5.0),),
        start_s=START_S,
        drain_s=60.0,
        strategy="surge",  # vLLM maps more memory than it needs
        ttft="1s",
        stalled_after_s=60.0,
        octaves=3.0,
        health_timeout_s=30.0,
        at_most_s=300.0,
        warm_up_s=120.0,
    )
    rig = await docker_site(site_config, blue)
    rig.patience_s = START_S + 300
    before = await bench.inspect(blue)

    async with rig.observer() as answers, rig.users(Load(streams=16), timeout_s=START_S) as traffic:
        made = await until(lambda: suggested(rig), bool, "the policy's suggestion", START_S)
        await rig.approve(made)
        rollout = await rig.ended(str(made["id"]))
        servers = await rig.consistent_servers()

    assert made["from"]["max_num_seqs"] == 2, made
    assert (rollout["outcome"], rollout["lost"], servers) == ("promoted", 0, ["chat-r1"]), rollout
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert made["to"]["max_num_seqs"] > 2
    old, new = before["Config"]["Cmd"], (await rig.container("chat-r1"))["Config"]["Cmd"]
    value = old.index("--max-num-seqs") + 1
    assert without_eager(new) == without_eager(
        [*old[:value], str(made["to"]["max_num_seqs"]), *old[value + 1 :]]
    )


def without_eager(command: list[str]) -> list[str]:
    """The command without what a second cause (G1) changes where the machine is slow."""
    return [word for word in command if word not in {"--enforce-eager", "--no-enforce-eager"}]


async def suggested(rig: DockerRig) -> Document:
    """The open suggestion; empty if there is none."""
    waiting = (await rig.target()).get("suggestion")
    return await rig.suggestion(waiting) if waiting else {}
