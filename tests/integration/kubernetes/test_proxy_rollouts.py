"""Rollouts whose traffic goes through Envoys in pods of their own."""

import asyncio
import signal
from pathlib import Path

import pytest

from flettner.simulator.traffic import Load
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY
from tests.support.kubernetes.proxy_site import proxy_site
from tests.support.rig import lost

pytestmark = pytest.mark.timeout(500)

CANARY_S = 20.0  # at least, so that what happens in the canary is over before its end


def lasting(seconds: float) -> tuple[tuple[int, int, float], ...]:
    return ((50, 8, seconds),)


async def restart_proxy(here: Namespace) -> None:
    """As `kubectl rollout restart` does; until all pods are new."""
    restarted = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
    await here.api.patch(here.path("deployments", PROXY), {"spec": {"template": restarted}})
    await here.available(PROXY)


async def test_a_rollout_loses_no_request(here: Namespace, tmp_path: Path) -> None:
    async with proxy_site(here, tmp_path / "s") as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            await site.restored("vllm", PROXY)

        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert "16" in await site.flags("vllm")


@pytest.mark.parametrize("fault", ["exit", "errors=0.5", "die_after=3", "hang_after=3", "slow=20"])
async def test_each_bad_green_is_rolled_back(here: Namespace, tmp_path: Path, fault: str) -> None:
    async with proxy_site(here, tmp_path / "s", "--sim-fault", f"max_num_seqs=16:{fault}") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            rollout = await site.switch(max_num_seqs=16)
            await site.restored("vllm", PROXY)

        assert rollout["outcome"] in {"rolled_back", "failed"}, rollout["why"]
        assert "8" in await site.flags("vllm")


async def test_a_killed_daemon_loses_no_request(here: Namespace, tmp_path: Path) -> None:
    async with proxy_site(here, tmp_path / "s", steps=lasting(CANARY_S)) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            await site.kill()
            await asyncio.sleep(8.0)  # longer than the lease
            await site.start()
            rollout = await site.ended(suggestion)
            await site.restored("vllm", PROXY)

        assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
        assert lost(traffic) == []


async def test_a_rolling_restart_of_the_envoys_loses_no_request(here: Namespace, tmp_path: Path) -> None:
    async with proxy_site(here, tmp_path / "s", steps=lasting(CANARY_S)) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            await restart_proxy(here)
            rollout = await site.ended(suggestion)
            await site.restored("vllm", PROXY)

        assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
        assert lost(traffic) == []


async def test_a_killed_envoy_loses_its_own_connections_only(here: Namespace, tmp_path: Path) -> None:
    async with proxy_site(here, tmp_path / "s", steps=lasting(CANARY_S)) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            here.node.pod(PROXY).container().signal(signal.SIGKILL)
            rollout = await site.ended(suggestion)
            await site.restored("vllm", PROXY)
            await here.available(PROXY)

        assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
        assert len(lost(traffic)) <= 16


async def test_two_minutes_without_the_api_server_lose_no_request(here: Namespace, tmp_path: Path) -> None:
    """The daemon ends when it cannot renew its Lease, and waits for it after each restart."""
    async with proxy_site(here, tmp_path / "s", steps=lasting(CANARY_S)) as site, site.restarting():
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            here.cluster.stop_api()
            await asyncio.sleep(120.0)
            here.cluster.start_api()
            rollout = await site.ended(suggestion)
            await site.restored("vllm", PROXY)

        assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
        assert lost(traffic) == []


async def test_a_swap_with_an_outage_below_the_hold_refuses_no_request(
    here: Namespace, tmp_path: Path
) -> None:
    async with proxy_site(here, tmp_path / "s", strategy="swap", waits_s=200.0) as site:
        made = await site.propose(max_num_seqs=16)
        async with site.clients(load=Load(streams=16), timeout_s=240.0) as traffic:
            await site.approve(made)
            rollout = await site.ended(str(made["id"]))
            await site.restored("vllm", PROXY)

        assert made["preflight"]["strategy"] == "swap"
        waits = "new requests wait in the proxy, at most 200 s each and 512 in that time in each pod of Envoy"
        assert waits in " ".join(made["notes"])
        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert "16" in await site.flags("vllm")
