"""A sample of the faults of `python -m bench.kills`: no lost request, no leftover process."""

import pytest

from bench.kills.story import Plan, play
from tests.support.sampling import FULL

KILLS: dict[str, int] = {}
DEATHS = {"proxy": 1, "green": 1, "blue": 1}
LACKS = {"prometheus": 1, "full": 1, "pause": 1}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "others"),
    [(5 if FULL else 3, KILLS), (0, DEATHS), (0, LACKS)],
    ids=["kills of the daemon", "exits of other processes", "temporary outages"],
)
async def test_no_fault_loses_a_request_or_leaves_a_process(kills: int, others: dict[str, int]) -> None:
    report = await play(Plan(seed=7, kills=kills, others=others, small=True, rate=10.0, pause_s=8.0))

    assert report["wrong"] == []
    assert report["lost_for_nothing"] == []
    assert report["orphans"] == []
    assert report["audit"]["verify"]["exit"] == 0, report["audit"]
    assert report["audit"]["missing"] == []
    unable = set() if report["small_disk"] else {"full"}  # filling a disk needs the right to mount
    assert sum(report["faults"].values()) >= kills + sum(
        others[kind] for kind in others if kind not in unable
    )
    assert all(ended_s < 5.0 + 1.0 for ended_s in report["green_ended_s"])  # the lease, and a second
