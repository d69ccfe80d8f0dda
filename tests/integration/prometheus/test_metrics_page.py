"""promtool accepts the page that the daemon serves at /metrics."""

import subprocess
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest

from flettner.agent.api.metrics import read_metrics
from tests.unit.api.test_metrics import busy

pytestmark = pytest.mark.smoke


def test_promtool_accepts_the_metrics_page(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_bytes(generate_latest(read_metrics(busy())))

    with path.open() as text:
        checked = subprocess.run(
            ["promtool", "check", "metrics"], stdin=text, capture_output=True, text=True, check=False
        )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
