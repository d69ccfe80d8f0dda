"""A few of every fault that `python -m bench.kills` does hundreds of: nothing is lost, nothing left over."""

import pytest

from bench.kills.story import Plan, play

KILLS: dict[str, int] = {}
DEATHS = {"proxy": 1, "green": 1, "blue": 1}
LACKS = {"prometheus": 1, "full": 1, "pause": 1}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "others"),
    [(5, KILLS), (0, DEATHS), (0, LACKS)],
    ids=["kills of the daemon", "deaths of others", "what is missing for a while"],
)
async def test_no_fault_loses_a_request_or_leaves_a_process(kills: int, others: dict[str, int]) -> None:
    told = await play(Plan(seed=7, kills=kills, others=others, small=True, rate=10.0, pause_s=8.0))

    assert told["wrong"] == []
    assert told["lost_for_nothing"] == []
    assert told["orphans"] == []
    assert told["audit"]["verify"]["exit"] == 0, told["audit"]
    assert told["audit"]["missing"] == []
    unable = set() if told["small_disk"] else {"full"}  # who may not mount cannot fill a disk
    assert sum(told["faults"].values()) >= kills + sum(others[kind] for kind in others if kind not in unable)
    assert all(ended_s < 5.0 + 1.0 for ended_s in told["green_ended_s"])  # the lease, and a second
