"""Rollouts whose traffic goes through Envoys in pods of their own."""

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY
from tests.support.kubernetes.proxy_site import proxy_site
from tests.support.kubernetes.site import STREAMS
from tests.support.rig import lost

pytestmark = pytest.mark.timeout(500)

LONG = ((50, 8, 20.0),)  # a canary that lasts longer than what happens in it
ENDED = {"promoted", "rolled_back"}


async def restart_proxy(here: Namespace) -> None:
    """As `kubectl rollout restart` does; until all pods are new."""
    restarted = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
    await here.api.patch(here.path("deployments", PROXY), {"spec": {"template": restarted}})
    await here.available(PROXY)


async def test_a_rollout_loses_no_request(here: Namespace, tmp_path: Path) -> None:
    async with proxy_site(here, tmp_path / "s") as site:
        rollout, gone = await site.changed()
        flags = await site.flags("vllm")

    assert (rollout["outcome"], rollout["lost"], gone) == ("promoted", 0, []), rollout["why"]
    assert "16" in flags


async def test_a_killed_daemon_loses_no_request(here: Namespace, tmp_path: Path) -> None:
    async with proxy_site(here, tmp_path / "s", steps=LONG) as site:
        rollout, gone = await site.changed(partial(site.restart, after_s=8.0))  # longer than the lease

    assert rollout["outcome"] in ENDED, rollout["why"]
    assert gone == []


async def test_a_rolling_restart_of_the_envoys_loses_no_request(here: Namespace, tmp_path: Path) -> None:
    async with proxy_site(here, tmp_path / "s", steps=LONG) as site:
        rollout, gone = await site.changed(partial(restart_proxy, here))

    assert rollout["outcome"] in ENDED, rollout["why"]
    assert gone == []


async def test_a_killed_envoy_loses_its_own_connections_only(here: Namespace, tmp_path: Path) -> None:
    async def kill_envoy() -> None:
        here.node.pod(PROXY).container().signal(signal.SIGKILL)

    async with proxy_site(here, tmp_path / "s", steps=LONG) as site:
        rollout, gone = await site.changed(kill_envoy)
        await here.available(PROXY)

    assert rollout["outcome"] in ENDED, rollout["why"]
    assert len(gone) <= 16


async def test_two_minutes_without_the_api_server_lose_no_request(here: Namespace, tmp_path: Path) -> None:
    """The daemon ends when it cannot renew its Lease, and waits for it after each restart."""
    async with proxy_site(here, tmp_path / "s", steps=LONG) as site, site.restarting():
        rollout, gone = await site.changed(partial(site.without_api_server, 120.0))

    assert rollout["outcome"] in ENDED, rollout["why"]
    assert gone == []


async def test_a_swap_with_an_outage_below_the_hold_refuses_no_request(
    here: Namespace, tmp_path: Path
) -> None:
    async with proxy_site(here, tmp_path / "s", strategy="swap", waits_s=200.0) as site:
        made = await site.propose(max_num_seqs=16)
        async with site.clients(load=STREAMS, timeout_s=240.0) as traffic:
            await site.approve(made)
            rollout = await site.ended(str(made["id"]))
            await site.restored()

        assert made["preflight"]["strategy"] == "swap"
        assert "at most 3.3 min each and 512 in that time in each pod of Envoy" in " ".join(made["notes"])
        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert "16" in await site.flags("vllm")
