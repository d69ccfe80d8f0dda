"""The systemd unit of the proxy is sandboxed."""

import re
import subprocess
from configparser import ConfigParser
from pathlib import Path

UNIT = Path(__file__).parents[3] / "systemd" / "flettner-docker-proxy.service"


def _lines(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_runs_as_its_own_user_in_the_docker_group() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]

    assert (service["User"], service["Group"], service["SupplementaryGroups"]) == (
        "flettner-docker-proxy",
        "flettner",
        "docker",
    )
    assert service["RestrictAddressFamilies"] == "AF_UNIX"
    assert service["PrivateNetwork"] == "yes"
    assert _lines("CapabilityBoundingSet") == [""]


def test_the_unit_has_a_low_systemd_exposure_score() -> None:
    report = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert report.returncode == 0, report.stdout[-2000:] + report.stderr
    assert "Unknown" not in report.stderr
