"""Repeated flag changes under load lose no request."""

import pytest

from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import lost
from tests.support.sampling import FULL

TURNS = 10 if FULL else 2


@pytest.mark.timeout(600)
async def test_consecutive_rollouts_lose_no_request(site: Start) -> None:
    rig = await site(SiteConfig())
    await rig.serving()

    async with rig.observer() as answers, rig.clients() as traffic:
        rollouts = [await rig.switch(max_num_seqs=16 if turn % 2 == 0 else 8) for turn in range(TURNS)]
        server = await rig.consistent_server()

    outcomes = [(rollout["outcome"], rollout["lost"]) for rollout in rollouts]
    assert outcomes == [("promoted", 0)] * TURNS, rollouts
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert server == f"chat-r{TURNS + 1}"
