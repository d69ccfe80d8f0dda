"""Rollouts behind a gateway: daemon, guard, clients, a real Envoy and a real API server."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from flettner.simulator.traffic import Load
from tests.support.kubernetes.gateway_site import HOME, ROUTE, gateway_site
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import STREAMS
from tests.support.ports import free_port
from tests.support.rig import Document, until

pytestmark = pytest.mark.timeout(400)


async def test_a_promoted_change_loses_no_request_and_leaves_the_route_to_people(
    here: Namespace, tmp_path: Path
) -> None:
    async with gateway_site(here, tmp_path / "s") as site:
        rollout, gone = await site.changed()
        flags = await site.flags("vllm")

    assert (rollout["outcome"], rollout["lost"], gone) == ("promoted", 0, []), rollout["why"]
    assert "16" in flags


@pytest.mark.parametrize("fault", ["exit", "slow=20", "errors=0.5", "die_after=3", "hang_after=3"])
async def test_a_bad_green_is_rolled_back_to_the_route_of_people(
    here: Namespace, tmp_path: Path, fault: str
) -> None:
    async with gateway_site(here, tmp_path / "s", "--sim-fault", f"max_num_seqs=16:{fault}") as site:
        async with site.clients(load=Load(rate=10.0), timeout_s=90.0):
            rollout = await site.switch(max_num_seqs=16)
            backends = await site.gateway.backends(ROUTE)
            await site.restored()

        assert rollout["outcome"] in {"rolled_back", "failed"}, rollout["why"]
        assert backends == HOME
        assert "8" in await site.flags("vllm")


async def test_the_guard_ends_the_lease_of_a_daemon_that_was_killed(here: Namespace, tmp_path: Path) -> None:
    left = []

    async with gateway_site(here, tmp_path / "s") as site:

        async def kill_until_home() -> None:
            await site.kill()
            await site.at_home()
            left.append(await site.record())
            await site.start()

        rollout, gone = await site.changed(kill_until_home)

    assert [record and record.ended for record in left] == [True]
    assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
    assert gone == []


async def test_a_rollout_is_judged_by_the_access_log_of_the_gateway(here: Namespace, tmp_path: Path) -> None:
    async with gateway_site(here, tmp_path / "s", records=f"127.0.0.1:{free_port()}") as site:
        rollout, gone = await site.changed()

    assert (rollout["outcome"], gone) == ("promoted", []), rollout["why"]
    assert rollout["green"]["asked"] > 0
    assert rollout["green"]["ttft_p95_s"] is not None


async def test_nothing_is_decided_while_the_records_are_lost(here: Namespace, tmp_path: Path) -> None:
    ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    async with gateway_site(here, tmp_path / "s", records=ports[0], sent_to=ports[1]) as site:
        async with site.clients(load=STREAMS, timeout_s=90.0):
            await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            await until(site.rollout, _is_held, "a rollout that is held")
            held = await site.rollout()

        assert (held["outcome"], held["green"]["asked"]) == ("running", 0)


def _is_held(rollout: Document) -> bool:
    return "the gateway recorded only 0 of" in str(rollout)


async def test_two_minutes_without_the_api_server_lose_no_request(here: Namespace, tmp_path: Path) -> None:
    """The split stays as it is: neither daemon nor guard can write. The daemon ends with its Lease."""
    async with gateway_site(here, tmp_path / "s") as site, site.restarting():
        rollout, gone = await site.changed(partial(site.without_api_server, 120.0))

    assert rollout["outcome"] in {"promoted", "rolled_back"}, rollout["why"]
    assert gone == []


async def test_an_edit_in_a_canary_is_left_and_reported(here: Namespace, tmp_path: Path) -> None:
    async with gateway_site(here, tmp_path / "s") as site:
        async with site.clients(load=Load(streams=4), timeout_s=90.0):
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            spec = (await site.gateway.get(ROUTE))["spec"]
            for ref, weight in zip(spec["rules"][0]["backendRefs"], (70, 30), strict=True):
                ref["weight"] = weight
            await here.api.patch(site.gateway.path(ROUTE), {"spec": spec})
            await until(site.target, _tells_drift, "a report of the edit")
            await asyncio.sleep(8.0)  # longer than the lease
            edited = await site.gateway.backends(ROUTE)

        assert sorted(edited.values()) == [30, 70]
        assert (await site.rollout())["suggestion"] == suggestion


def _tells_drift(target: Document) -> bool:
    sources = {source["source"]: source for source in target.get("sources", ())}
    return "drift: a third party" in sources.get("traffic", {}).get("why", "")
