"""kill -9 of the daemon at any point: traffic continues, and the next daemon completes the rollout."""

import asyncio

import pytest

from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import Rig, lost, until
from tests.support.sampling import sampled

SLOW = SiteConfig(steps=((20, 3, 1.0), (50, 5, 1.0)), hold_s=1.0, warm_up_requests=24)


async def crash(rig: Rig, away_s: float = 1.0) -> None:
    await rig.kill()
    await asyncio.sleep(away_s)
    await rig.start()


@pytest.mark.parametrize(
    "phases",
    sampled(
        [
            (("canary", 0), ("canary", 1)),
            (("launching", 0), ("warming", 0)),
            (("canary", 2), ("promoting", 2)),
        ],
        3,
    ),
)
async def test_promotes_although_the_daemon_is_killed_twice(
    site: Start, phases: tuple[tuple[str, int], ...]
) -> None:
    rig = await site(SLOW)
    await rig.serving()

    async with rig.observer() as answers, rig.clients() as traffic:
        change = await rig.change(max_num_seqs=16)
        for phase, step in phases:
            await rig.in_phase(phase, step)
            await crash(rig)
        rollout = await rig.ended(change)
        server = await rig.consistent_server()

    assert (rollout["outcome"], rollout["lost"], server) == ("promoted", 0, "chat-r2"), rollout
    assert rollout["restarts"] >= 1
    assert lost(traffic) == []
    assert set(answers) == {"200"}


async def test_completes_a_rollback_after_the_daemon_is_killed(site: Start) -> None:
    rig = await site(SLOW)
    await rig.serving()

    async with rig.observer() as answers, rig.clients() as traffic:
        change = await rig.change(max_num_seqs=16)
        await rig.in_phase("canary", 1)
        status, answer = await rig.ask(
            "POST", f"/v1/rollouts/{(await rig.rollout())['id']}/abort", {"reason": "enough"}
        )
        assert (status, answer["phase"]) == (200, "rolling_back")
        await crash(rig)
        rollout = await rig.ended(change)
        server = await rig.consistent_server()

    assert (rollout["outcome"], rollout["lost"], server) == ("rolled_back", 0, "chat-r1"), rollout
    assert "aborted by alice: enough" in rollout["why"]
    assert lost(traffic) == []
    assert set(answers) == {"200"}


@pytest.mark.smoke
async def test_blue_gets_all_traffic_when_the_daemon_dies_in_the_canary(site: Start) -> None:
    rig = await site(SiteConfig(steps=((50, 1000, 50.0),)))
    await rig.serving()

    async with rig.observer() as answers, rig.clients() as traffic:
        await rig.change(max_num_seqs=16)
        await rig.in_phase("canary")
        await until(lambda: rig.answered("chat-r2"), lambda count: count > 4, "answers by green")
        await rig.kill()
        await asyncio.sleep(7.0)  # the lease of 5 s, and the open requests
        green, blue = await rig.answered("chat-r2"), await rig.answered("chat-r1")
        await until(lambda: rig.answered("chat-r1"), lambda count: count > blue + 30, "answers by blue")
        assert await rig.answered("chat-r2") == green

    assert lost(traffic) == []
    assert set(answers) == {"200"}
