"""Rollouts over real Deployments: daemon, Envoy, clients and a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flettner.simulator.traffic import Load
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import KubernetesSite, site_of
from tests.support.rig import lost, until

pytestmark = pytest.mark.timeout(400)

FLAGS = ("tiny", "--sim-start-s", "0.5", "--sim-speed", "1", "--max-num-seqs", "8")


@asynccontextmanager
async def running(
    here: Namespace, tmp_path: Path, *flags: str, replicas: int = 1, least_s: float = 0.5
) -> AsyncIterator[KubernetesSite]:
    await here.create("deployments", deployment("vllm", container(*FLAGS, *flags, gpus=1), replicas=replicas))
    await here.available("vllm")
    site = site_of(here, tmp_path / "s", steps=((50, 8, least_s),))
    await site.start()
    try:
        await site.serving()
        yield site
    finally:
        await site.tear_down()


@pytest.mark.smoke
async def test_a_promoted_change_ends_in_the_operators_deployment(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            left = await site.restored("vllm")
            found = await site.serving()

        await site.scale("vllm", 0)
        stopped = await until(site.target, lambda target: "scaled to 0" in target["note"], "the stop noted")
        assert await site.deployments() == {"vllm": 0}
        await site.scale("vllm", 1)
        await here.available("vllm")
        await site.serving()

        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert (stopped["phase"], await site.deployments()) == ("observing", {"vllm": 1})
        assert "16" in await site.flags("vllm")
        assert "max_num_seqs" in left["metadata"]["annotations"]["flettner.dev/change"]
        assert [server["name"] for server in found["servers"]] == ["chat-r1"]


@pytest.mark.smoke
async def test_a_bad_green_is_rolled_back_and_leaves_nothing(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path, "--sim-fault", "max_num_seqs=16:errors=0.5") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            rollout = await site.switch(max_num_seqs=16)
            await site.restored("vllm")

        assert rollout["outcome"] == "rolled_back", rollout["why"]
        assert "8" in await site.flags("vllm")
        assert await site.deployments() == {"vllm": 1}


async def test_two_replicas_change_together(here: Namespace, tmp_path: Path) -> None:
    await here.add_node(gpus=2)
    async with running(here, tmp_path, replicas=2) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            left = await site.restored("vllm")

        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert left["spec"]["replicas"] == 2


async def test_a_handover_that_a_killed_daemon_left_goes_on(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await until(
                site.deployments, lambda found: found["vllm"] == 0, "the operator's Deployment to stop"
            )
            await site.kill()
            await site.start()
            rollout = await site.ended(suggestion)
            await site.restored("vllm")

        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert "16" in await site.flags("vllm")


async def test_traffic_goes_on_while_the_api_server_is_away_in_a_canary(
    here: Namespace, tmp_path: Path
) -> None:
    async with running(here, tmp_path) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            here.cluster.stop_api()
            await asyncio.sleep(20.0)
            here.cluster.start_api()
            rollout = await site.ended(suggestion)
            await site.restored("vllm")

        assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
        assert lost(traffic) == []


@pytest.mark.parametrize("fault", ["exit", "errors=0.5", "die_after=3", "hang_after=3", "slow=20"])
async def test_each_bad_green_is_rolled_back(here: Namespace, tmp_path: Path, fault: str) -> None:
    async with running(here, tmp_path, "--sim-fault", f"max_num_seqs=16:{fault}") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            rollout = await site.switch(max_num_seqs=16)
            await site.restored("vllm")

        assert rollout["outcome"] in {"rolled_back", "failed"}, rollout["why"]
        assert await site.deployments() == {"vllm": 1}


async def test_a_green_with_wrong_answers_gets_no_request(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path, "--sim-fault", "kv_cache_dtype=fp8_e5m2:wrong=0.3") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0) as traffic:
            rollout = await site.switch(kv_cache_dtype="fp8_e5m2")
            await site.restored("vllm")

        assert rollout["outcome"] == "rolled_back", rollout["why"]
        assert "odd one out" in rollout["why"]
        assert rollout["exposed"]["total"] == 0
        assert lost(traffic) == []


async def test_a_green_that_is_killed_for_its_memory_is_rolled_back(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path, least_s=20.0) as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            here.node.kill_for_memory(here.node.pod("flettner"))
            rollout = await site.ended(suggestion)
            await site.restored("vllm")

        assert rollout["outcome"] == "rolled_back", rollout["why"]
        assert "out of memory" in rollout["why"]
        assert "8" in await site.flags("vllm")


@pytest.mark.parametrize("phase", ["launching", "warming", "canary", "promoting"])
async def test_a_daemon_killed_in_a_phase_loses_nothing(here: Namespace, tmp_path: Path, phase: str) -> None:
    async with running(here, tmp_path) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase(phase)
            await site.kill()
            await site.start()
            rollout = await site.ended(suggestion)
            await site.restored("vllm")

        assert rollout["outcome"] in {"promoted", "rolled_back", "failed"}, rollout["why"]
        assert lost(traffic) == []


@pytest.mark.timeout(1800)
async def test_ten_changes_in_a_row_lose_nothing(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            for cap in (16, 32) * 5:  # enough for the clients, so that both are as good
                rollout = await site.switch(max_num_seqs=cap)
                assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
                await site.restored("vllm")

        assert await site.deployments() == {"vllm": 1}
        assert lost(traffic) == []
