"""The README's demo, as a newcomer runs it: everything real but, in the first, the engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def demo(engine: str, home: Path, **environment: str) -> dict[str, Any]:
    """What `trimtab demo` reports; fails with its output when it says that something went wrong."""
    report = home / "demo.json"
    command = [
        sys.executable,
        "-m",
        "agent.main",
        "demo",
        "--engine",
        engine,
        "--for",
        "8",
        "--json",
        str(report),
    ]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told: dict[str, Any] = json.loads(report.read_text())
    return told


def assert_the_whole_story(told: dict[str, Any]) -> None:
    requests = told["requests"]
    assert requests["sent"] == requests["ok"] > 0
    assert (requests["failed"], requests["truncated"]) == (0, 0)
    assert [rollout["outcome"] for rollout in told["rollouts"]] == ["promoted", "rolled_back"]
    assert told["rollouts"][1]["exposed"] >= told["rollouts"][1]["bad_exposed"] > 0
    assert told["audit"]["verified"]


@pytest.mark.timeout(420)
def test_the_demo_runs_to_its_end_on_the_simulator(tmp_path: Path) -> None:
    told = demo("sim", tmp_path)

    assert_the_whole_story(told)
