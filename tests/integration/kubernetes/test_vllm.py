"""A full rollout with real vLLM in pods: adopted, changed, promoted, handed over."""

from pathlib import Path

import pytest

from flettner.simulator.traffic import Load
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import site_of
from tests.support.real_vllm import ENVIRONMENT, real_vllm
from tests.support.rig import lost, until

pytestmark = pytest.mark.timeout(1800)

START_S = 600.0  # a start needs a minute of CPU time


async def test_a_change_ends_in_the_operators_deployment(here: Namespace, tmp_path: Path) -> None:
    python, *words = real_vllm().command("--max-num-seqs", "2")
    env = [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
    env.append({"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"})  # two servers share the cores
    server = container(*words[2:], command=[python, *words[:2]], env=env)
    await here.create("deployments", deployment("vllm", server))
    await until(lambda: is_ready(here), bool, "real vLLM to be ready", START_S)
    site = site_of(
        here,
        tmp_path / "s",
        steps=((50, 20, 5.0),),
        start_s=START_S,
        drain_s=60.0,
        ttft="10s",
        stalled_after_s=30.0,
        at_most_s=300.0,
        warm_up_s=120.0,
    )
    site.patience_s = START_S + 600
    async with site.running():
        async with site.clients(load=Load(streams=16), timeout_s=START_S) as traffic:
            rollout = await site.switch(max_num_seqs=4)
            await until(lambda: is_ready(here), bool, "the operator's Deployment", START_S)

        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert "4" in await site.flags("vllm")
        assert await site.deployments() == {"vllm": 1}


async def is_ready(here: Namespace) -> bool:
    document = await here.get("deployments", "vllm")
    return bool(document["status"].get("availableReplicas", 0) == 1)
