"""Rollouts over real Deployments: daemon, Envoy, clients and a real API server."""

from functools import partial
from pathlib import Path

import pytest

from flettner.simulator.traffic import Load
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy_site import proxy_site
from tests.support.kubernetes.site import STREAMS, KubernetesSite, host_site
from tests.support.rig import lost, until

pytestmark = pytest.mark.timeout(500)

SITES = {"an Envoy of the host": host_site, "Envoys in pods": proxy_site}
LONG = ((50, 8, 20.0),)  # a canary that lasts longer than what happens in it


@pytest.mark.smoke
async def test_a_promoted_change_ends_in_the_operators_deployment(here: Namespace, tmp_path: Path) -> None:
    async with host_site(here, tmp_path / "s") as site:
        async with site.clients(load=STREAMS, timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            left = await site.restored()
            serving = await site.serving()

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
        assert [server["name"] for server in serving["servers"]] == ["chat-r1"]


@pytest.mark.smoke
async def test_a_bad_green_is_rolled_back_and_leaves_nothing(here: Namespace, tmp_path: Path) -> None:
    async with host_site(here, tmp_path / "s", "--sim-fault", "max_num_seqs=16:errors=0.5") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            rollout = await site.switch(max_num_seqs=16)
            await site.restored()

        assert rollout["outcome"] == "rolled_back", rollout["why"]
        assert "8" in await site.flags("vllm")
        assert await site.deployments() == {"vllm": 1}


async def kill_at_handover(site: KubernetesSite) -> None:
    await until(site.deployments, lambda replicas: replicas["vllm"] == 0, "the operator's Deployment to stop")
    await site.kill()
    await site.start()


async def test_a_handover_that_a_killed_daemon_left_goes_on(here: Namespace, tmp_path: Path) -> None:
    async with host_site(here, tmp_path / "s") as site:
        rollout, gone = await site.changed(partial(kill_at_handover, site), "promoting")
        flags = await site.flags("vllm")

    assert (rollout["outcome"], rollout["lost"], gone) == ("promoted", 0, []), rollout["why"]
    assert "16" in flags


@pytest.mark.parametrize("fault", ["exit", "errors=0.5", "die_after=3", "hang_after=3", "slow=20"])
@pytest.mark.parametrize("behind", SITES)
async def test_each_bad_green_is_rolled_back(
    here: Namespace, tmp_path: Path, behind: str, fault: str
) -> None:
    async with SITES[behind](here, tmp_path / "s", "--sim-fault", f"max_num_seqs=16:{fault}") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            rollout = await site.switch(max_num_seqs=16)
            await site.restored()

        assert rollout["outcome"] in {"rolled_back", "failed"}, rollout["why"]
        assert (await site.deployments())["vllm"] == 1
        assert "8" in await site.flags("vllm")


async def test_a_green_with_wrong_answers_gets_no_request(here: Namespace, tmp_path: Path) -> None:
    async with host_site(here, tmp_path / "s", "--sim-fault", "kv_cache_dtype=fp8_e5m2:wrong=0.3") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0) as traffic:
            rollout = await site.switch(kv_cache_dtype="fp8_e5m2")
            await site.restored()

        assert rollout["outcome"] == "rolled_back", rollout["why"]
        assert "odd one out" in rollout["why"]
        assert rollout["exposed"]["total"] == 0
        assert lost(traffic) == []


async def test_a_green_that_is_not_ready_for_a_time_loses_no_request(here: Namespace, tmp_path: Path) -> None:
    """As one whose readiness probe has a shorter timeout than its busy server needs."""

    async def mark_not_ready() -> None:
        pods = await here.list("pods")
        green = next(pod for pod in pods if pod["metadata"]["name"].startswith("flettner"))
        for condition in green["status"]["conditions"]:
            if condition["type"] == "Ready":
                condition["status"] = "False"
        await here.api.patch(f"{here.path('pods', green['metadata']['name'])}/status", green)

    async with host_site(here, tmp_path / "s", steps=LONG) as site:
        rollout, gone = await site.changed(mark_not_ready)

    assert (rollout["outcome"], gone) == ("promoted", []), rollout["why"]


async def test_a_green_that_is_killed_for_its_memory_is_rolled_back(here: Namespace, tmp_path: Path) -> None:
    async def kill_for_memory() -> None:
        here.node.kill_for_memory(here.node.pod("flettner"))

    async with host_site(here, tmp_path / "s", steps=LONG) as site:
        rollout, _ = await site.changed(kill_for_memory)
        flags = await site.flags("vllm")

    assert rollout["outcome"] == "rolled_back", rollout["why"]
    assert "out of memory" in rollout["why"]
    assert "8" in flags


@pytest.mark.parametrize("phase", ["launching", "warming", "canary", "promoting"])
async def test_a_daemon_killed_in_a_phase_loses_nothing(here: Namespace, tmp_path: Path, phase: str) -> None:
    async with host_site(here, tmp_path / "s") as site:
        rollout, gone = await site.changed(site.restart, phase)

    assert rollout["outcome"] in {"promoted", "rolled_back", "failed"}, rollout["why"]
    assert gone == []


@pytest.mark.timeout(1800)
async def test_ten_changes_in_a_row_lose_nothing(here: Namespace, tmp_path: Path) -> None:
    async with host_site(here, tmp_path / "s") as site:
        async with site.clients(load=STREAMS, timeout_s=90.0) as traffic:
            for cap in (16, 32) * 5:  # enough for the clients, so that both are as good
                rollout = await site.switch(max_num_seqs=cap)
                assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
                await site.restored()

        assert await site.deployments() == {"vllm": 1}
        assert lost(traffic) == []
