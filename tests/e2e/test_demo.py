"""The README's demo; only the engine is simulated."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def demo(engine: str, home: Path, **environment: str) -> dict[str, Any]:
    """Return the report of `flettner demo`; fail with its output if the demo fails."""
    report = home / "demo.json"
    command = [
        sys.executable,
        "-m",
        "flettner",
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
    facts: dict[str, Any] = json.loads(report.read_text())
    return facts


def assert_complete_report(facts: dict[str, Any]) -> None:
    requests = facts["requests"]
    assert requests["sent"] == requests["ok"] > 0
    assert (requests["failed"], requests["truncated"]) == (0, 0)
    assert [rollout["outcome"] for rollout in facts["rollouts"]] == ["promoted", "rolled_back"]
    assert facts["rollouts"][1]["exposed"] >= facts["rollouts"][1]["bad_exposed"] > 0
    assert facts["audit"]["verified"]


@pytest.mark.timeout(900)
def test_the_demo_runs_to_its_end_on_the_simulator(tmp_path: Path) -> None:
    facts = demo("sim", tmp_path)

    assert_complete_report(facts)
