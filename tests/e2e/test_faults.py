"""A sample of the faults of `python -m bench.kills`: no lost request, no leftover process."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

KILLS: dict[str, int] = {}
DEATHS = {"proxy": 1, "green": 1, "blue": 1}
LACKS = {"prometheus": 1, "full": 1, "pause": 1}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "others"),
    [
        pytest.param(5, KILLS, id="kills of the daemon", marks=pytest.mark.slow),
        pytest.param(0, DEATHS, id="exits of other processes"),
        pytest.param(0, LACKS, id="temporary outages", marks=pytest.mark.slow),
    ],
)
async def test_no_fault_loses_a_request_or_leaves_a_process(
    tmp_path: Path, kills: int, others: dict[str, int]
) -> None:
    file = tmp_path / "kills.json"
    counts = ("--sites", "1", "--seed", "7", "--kills", f"{kills}", "--others", json.dumps(others))
    bench = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.kills", *counts, "--pause-s", "8", "--json", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await bench.communicate()
    finally:
        if bench.returncode is None:
            bench.terminate()
    assert file.exists(), output.decode()
    (report,) = json.loads(file.read_text())["sites"]

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
