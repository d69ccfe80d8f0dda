"""A green is judged and promoted in its own time, however many requests still wait at blue."""

from datetime import datetime
from functools import partial

import pytest

from flettner.simulator.traffic import Load, TrafficGenerator
from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import Rig, lost, until

BACKLOG = 800
HOLD_S = 5.0
OVERLOAD = Load(rate=30.0)  # of a blue that answers about 15 requests/s


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_blues_backlog_delays_neither_the_hold_step_nor_the_promotion(site: Start) -> None:
    rig = await site(SiteConfig(hold_s=HOLD_S, drain_s=120.0, stalled_after_s=60.0, octaves=3.0))
    rig.patience_s = 240.0
    await rig.serving()

    async with rig.clients(rate=5.0, timeout_s=300.0) as traffic:
        change = await rig.change(max_num_seqs=4)
        without_s = await hold_s(rig)
        await rig.ended(change)
        traffic.load = OVERLOAD
        await until(partial(count_waiting, traffic), BACKLOG.__le__, "the backlog at blue", 200.0)
        change = await rig.change(max_num_seqs=64)
        with_backlog_s = await hold_s(rig)
        waiting = await count_waiting(traffic)
        rollout = await rig.ended(change)

    assert rollout["outcome"] == "promoted", rollout
    assert waiting > BACKLOG / 4, "the backlog was gone when the hold step ended, so this shows nothing"
    assert with_backlog_s < without_s + HOLD_S, (with_backlog_s, without_s)
    assert rollout["lost"] == 0
    assert lost(traffic) == []


async def hold_s(rig: Rig) -> float:
    """Return how long the rollout's hold step took, from the split in force until it passed."""
    began = await rig.in_phase("canary", step=1)
    passed = await rig.in_phase("promoting", step=1)
    return (at(passed["phase_since"]) - at(began["step_since"])).total_seconds()


def at(time: str) -> datetime:
    return datetime.fromisoformat(time)


async def count_waiting(traffic: TrafficGenerator) -> int:
    return traffic.tally.in_flight
