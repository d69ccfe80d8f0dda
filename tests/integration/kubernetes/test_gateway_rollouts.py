"""Rollouts behind a gateway: daemon, guard, clients, a real Envoy and a real API server."""

import asyncio
from pathlib import Path

import pytest

from flettner.simulator.traffic import Load
from tests.support.kubernetes.gateway_site import HOME, ROUTE, running
from tests.support.kubernetes.namespace import Namespace
from tests.support.ports import free_port
from tests.support.rig import Document, lost, until

pytestmark = pytest.mark.timeout(400)

FLAGS = ("tiny", "--sim-start-s", "0.5", "--sim-speed", "1", "--max-num-seqs", "8")
FAULTS = ("slow=20", "errors=0.5", "die_after=3", "hang_after=3")


async def test_a_promoted_change_loses_no_request_and_leaves_the_route_to_people(
    here: Namespace, tmp_path: Path
) -> None:
    async with running(here, tmp_path / "s", *FLAGS) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            await site.restored("vllm")
            await site.at_home()

        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert "16" in await site.flags("vllm")


@pytest.mark.parametrize("fault", ["exit", *FAULTS])
async def test_a_bad_green_is_rolled_back_to_the_route_of_people(
    here: Namespace, tmp_path: Path, fault: str
) -> None:
    async with running(here, tmp_path / "s", *FLAGS, "--sim-fault", f"max_num_seqs=16:{fault}") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            rollout = await site.switch(max_num_seqs=16)
            await site.restored("vllm")

        assert rollout["outcome"] in {"rolled_back", "failed"}, rollout["why"]
        assert await site.gateway.backends(ROUTE) == HOME
        assert "8" in await site.flags("vllm")


async def test_the_guard_ends_the_lease_of_a_daemon_that_was_killed(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path / "s", *FLAGS) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            await site.kill()
            await site.at_home()
            left = await site.record()
            await site.start()
            rollout = await site.ended(suggestion)
            await site.restored("vllm")

        assert left is not None
        assert left.ended
        assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
        assert lost(traffic) == []


async def test_a_rollout_is_judged_by_the_access_log_of_the_gateway(here: Namespace, tmp_path: Path) -> None:
    records = f"127.0.0.1:{free_port()}"
    async with running(here, tmp_path / "s", *FLAGS, records=records) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            await site.at_home()

        assert rollout["outcome"] == "promoted", rollout["why"]
        assert lost(traffic) == []
        assert rollout["green"]["asked"] > 0
        assert rollout["green"]["ttft_p95_s"] is not None


async def test_nothing_is_decided_while_the_records_are_lost(here: Namespace, tmp_path: Path) -> None:
    ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    async with running(here, tmp_path / "s", *FLAGS, records=ports[0], sent_to=ports[1]) as site:
        async with site.clients(load=Load(streams=16), timeout_s=90.0):
            await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            await until(site.rollout, _is_held, "a rollout that is held")
            held = await site.rollout()

        assert (held["outcome"], held["green"]["asked"]) == ("running", 0)


def _is_held(rollout: Document) -> bool:
    return "the gateway recorded only 0 of" in str(rollout)


async def test_two_minutes_without_the_api_server_lose_no_request(here: Namespace, tmp_path: Path) -> None:
    """The split stays as it is: neither daemon nor guard can write. The daemon ends with its Lease."""
    async with running(here, tmp_path / "s", *FLAGS) as site, site.restarting():
        async with site.clients(load=Load(streams=16), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            here.cluster.stop_api()
            await asyncio.sleep(120.0)
            here.cluster.start_api()
            rollout = await site.ended(suggestion)
            await site.restored("vllm")
            await site.at_home()

        assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
        assert lost(traffic) == []


async def test_an_edit_in_a_canary_is_left_and_reported(here: Namespace, tmp_path: Path) -> None:
    async with running(here, tmp_path / "s", *FLAGS) as site:
        async with site.clients(load=Load(streams=4), timeout_s=90.0):
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            spec = (await site.gateway.get(ROUTE))["spec"]
            for one, weight in zip(spec["rules"][0]["backendRefs"], (70, 30), strict=True):
                one["weight"] = weight
            await here.api.patch(site.gateway.path(ROUTE), {"spec": spec})
            await until(site.target, _tells_drift, "a report of the edit")
            await asyncio.sleep(8.0)  # longer than the lease
            edited = await site.gateway.backends(ROUTE)

        assert sorted(edited.values()) == [30, 70]
        assert (await site.rollout())["suggestion"] == suggestion


def _tells_drift(target: Document) -> bool:
    sources = {one["source"]: one for one in target.get("sources", ())}
    return "drift: a third party" in sources.get("traffic", {}).get("why", "")
