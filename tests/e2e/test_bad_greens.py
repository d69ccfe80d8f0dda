"""Every kind of faulty green is rolled back with its cause; blue stays unchanged."""

import os
import signal

import pytest

from flettner.simulator.traffic import Load
from flettner.vllm_facts.values import Value
from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import Document, Rig, lost, until

NO_LOAD = Load(rate=0.001)
CUT = {"truncated", "failed"}  # after some tokens or after the headers, which vLLM sends at once


async def assert_rolled_back(rig: Rig, blue: int, rollout: Document, *, cause: str) -> None:
    """Assert a rollback with the cause in the audit; the same blue process has all traffic."""
    assert rollout["outcome"] == "rolled_back", rollout
    assert cause in rollout["why"], rollout["why"]
    assert rig.named_in_audit(cause)
    assert await rig.consistent_server() == "chat-r1"
    assert rig.pid("chat-r1") == blue


async def test_routes_no_request_to_a_green_that_cannot_start(site: Start) -> None:
    rig = await site(SiteConfig(faults=("max_num_seqs=9:exit",)))
    await rig.serving()
    blue = rig.pid("chat-r1")
    bad: tuple[tuple[dict[str, Value], str, str], ...] = (
        ({"scheduling_policy": "priority"}, "exited with code 2", "invalid choice: 'priority'"),
        ({"max_num_active_seqs": 1024}, "exited with code 1", "must be <= max_num_seqs"),
        ({"max_num_seqs": 9}, "exited with code 1", "the simulated fault of this setting"),
    )

    async with rig.clients() as traffic:
        for to, cause, logged in bad:
            rollout = await rig.switch(**to)
            await assert_rolled_back(rig, blue, rollout, cause=cause)
            assert any(logged in line for line in rollout["log"]), rollout["log"]
            assert rig.named_in_audit(logged)
            assert rollout["exposed"]["total"] == 0

    assert lost(traffic) == []


async def test_routes_no_request_to_a_green_with_wrong_answers(site: Start) -> None:
    rig = await site(SiteConfig(faults=("kv_cache_dtype=fp8_e5m2:wrong=0.3",)))
    await rig.serving()
    blue = rig.pid("chat-r1")

    async with rig.clients() as traffic:
        rollout = await rig.switch(kv_cache_dtype="fp8_e5m2")
        await assert_rolled_back(rig, blue, rollout, cause="odd one out")
        assert rollout["exposed"]["total"] == 0
        assert rollout["quality"]["same"] < 0.9
        assert not rig.named_in_journal("capital of France")
        rollout = await rig.switch(kv_cache_dtype="fp8_e4m3")
        assert (rollout["outcome"], rollout["quality"]["same"]) == ("promoted", 1.0), rollout

    assert lost(traffic) == []


@pytest.mark.smoke
async def test_a_green_that_dies_in_the_canary_loses_only_its_own_requests(site: Start) -> None:
    rig = await site(SiteConfig(faults=("max_num_seqs=9:die_after=4",), steps=((50, 1000, 50.0),)))
    await rig.serving()
    blue = rig.pid("chat-r1")

    async with rig.clients() as traffic:
        rollout = await rig.switch(max_num_seqs=9)
        await assert_rolled_back(rig, blue, rollout, cause="chat-r2 exited with code 1")

    assert rollout["exposed"]["total"] > 0
    assert "Application startup complete." in "\n".join(rollout["log"])
    assert {record.outcome for record in lost(traffic)} <= CUT, lost(traffic)
    assert len(lost(traffic)) <= 8  # the open requests of one server


async def test_detects_a_hanging_green_whose_health_check_succeeds(site: Start) -> None:
    rig = await site(SiteConfig(faults=("max_num_seqs=9:hang_after=3",), steps=((50, 1000, 50.0),)))
    await rig.serving()
    blue = rig.pid("chat-r1")

    async with rig.clients() as traffic:
        rollout = await rig.switch(max_num_seqs=9)
        await assert_rolled_back(rig, blue, rollout, cause="green is worse")

    assert {record.outcome for record in lost(traffic)} <= CUT, lost(traffic)


async def test_a_frozen_green_loses_no_request_without_a_response_yet(site: Start) -> None:
    rig = await site(SiteConfig(steps=((50, 1000, 50.0),)))
    await rig.serving()
    blue = rig.pid("chat-r1")

    async with rig.clients() as traffic:
        change = await rig.change(max_num_seqs=9)
        await rig.in_phase("canary")
        load, traffic.load = traffic.load, NO_LOAD
        await until(lambda: _in_flight(traffic.tally.in_flight), lambda count: not count, "no open request")
        os.kill(rig.pid("chat-r2"), signal.SIGSTOP)
        traffic.load = load
        rollout = await rig.ended(change)
        await assert_rolled_back(rig, blue, rollout, cause="/health does not answer")

    assert lost(traffic) == []


async def _in_flight(count: int) -> int:
    return count


@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [
        ("errors=0.4", {"failed"}),
        pytest.param("abort=0.4", {"aborted"}, marks=pytest.mark.slow),
        pytest.param("truncate=0.4", {"truncated"}, marks=pytest.mark.slow),
        pytest.param("slow=5", set(), marks=pytest.mark.slow),
    ],
)
async def test_the_judge_rolls_back_a_green_with_bad_answers(
    site: Start, fault: str, outcomes: set[str]
) -> None:
    faults = (f"max_num_seqs=9:{fault}",)
    rig = await site(SiteConfig(faults=faults, steps=((50, 20, 1.0),), margin=0.1, warm_up_requests=0))
    await rig.serving()
    blue = rig.pid("chat-r1")

    async with rig.clients() as traffic:
        rollout = await rig.switch(max_num_seqs=9)
        await assert_rolled_back(rig, blue, rollout, cause="green is worse")

    assert {record.outcome for record in lost(traffic)} == outcomes
