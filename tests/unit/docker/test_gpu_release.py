"""A GPU's memory comes back some time after its server has ended: it is waited for."""

from pathlib import Path

import pytest

from actuators.docker.gpu_release import freed
from actuators.docker.spec import ContainerSpec

GPU = ContainerSpec.parse({"HostConfig": {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}})
SMI = """#!/bin/sh
echo x >> {asked}
used=$((80000 - 20000 * $(wc -l < {asked})))
[ $used -lt 1000 ] && used=1000
echo "0, GPU-1, $used, 600, 81920, [N/A]"
"""


def asked(folder: Path) -> int:
    file = folder / "asked"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(asked=tmp_path / "asked"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


async def test_it_is_waited_for_until_no_more_comes_back(smi: Path) -> None:
    await freed("", GPU, every_s=0.01)

    assert asked(smi) == 5  # 60000, 40000, 20000, 1000 and 1000 again


async def test_it_is_not_waited_for_longer_than_allowed(smi: Path) -> None:
    await freed("", GPU, every_s=3600, within_s=1)

    assert asked(smi) == 1


@pytest.mark.parametrize(("host", "spec"), [("tcp://10.0.0.7:2376", GPU), ("", ContainerSpec.parse({}))])
async def test_there_is_nothing_to_wait_for(smi: Path, host: str, spec: ContainerSpec) -> None:
    await freed(host, spec)

    assert asked(smi) == 0


async def test_without_nvidia_smi_nobody_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    await freed("", GPU, within_s=3600)
