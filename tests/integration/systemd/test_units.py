"""The shipped units are sandboxed as far as possible."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

UNITS = Path(__file__).parents[3] / "systemd"


@pytest.mark.parametrize(("unit", "tenths"), [("flettner", 10), ("flettner-docker-proxy", 3)])
def test_systemd_finds_little_to_improve(unit: str, tenths: int) -> None:
    little_to_improve(UNITS / f"{unit}.service", tenths)


def little_to_improve(unit: Path, tenths: int) -> None:
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    assert "Unknown" not in result.stderr


def test_gpu_access_adds_two_tenths_to_the_exposure_score(tmp_path: Path) -> None:
    """With the drop-in for hosts with NVIDIA GPUs."""
    unit = tmp_path / "flettner.service"
    more = (UNITS / "nvidia.conf").read_text().partition("[Service]\n")[2]
    unit.write_text((UNITS / "flettner.service").read_text().replace("\n[Install]", f"\n{more}\n[Install]"))

    little_to_improve(unit, 12)


def test_stops_only_the_daemon_and_passes_its_audit_key() -> None:
    unit = (UNITS / "flettner.service").read_text()

    for line in (
        "Type=notify",
        "KillMode=process",
        "OOMPolicy=continue",
        "ExecReload=/opt/flettner/bin/flettner reload",
    ):
        assert re.search(f"^{re.escape(line)}$", unit, re.MULTILINE), line
    assert "LoadCredential=audit.key:/etc/flettner/audit.key" in unit
    assert "\nMemoryMax" not in unit
