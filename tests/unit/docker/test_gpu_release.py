"""The end of a server waits until the driver has freed its GPU memory."""

from pathlib import Path

import pytest

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.docker.lifecycle import wait_for_gpu_memory
from flettner.actuators.host.memory import until_freed

GPU = Container.parse({"HostConfig": {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}})
SMI = """#!/bin/sh
echo x >> {asked}
used=$((80000 - 20000 * $(wc -l < {asked})))
[ $used -lt 1000 ] && used=1000
echo "0, GPU-1, $used, 600, 81920, [N/A]"
"""


def count_calls(folder: Path) -> int:
    file = folder / "asked"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(asked=tmp_path / "asked"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


async def test_waits_until_no_more_memory_is_freed(smi: Path) -> None:
    await until_freed(every_s=0.01)

    assert count_calls(smi) == 5  # 60000, 40000, 20000, 1000 and 1000 again


async def test_waits_no_longer_than_the_limit(smi: Path) -> None:
    await until_freed(every_s=3600, within_s=1)

    assert count_calls(smi) == 1


@pytest.mark.parametrize(
    ("host", "container", "asks"),
    [("", GPU, True), ("tcp://10.0.0.7:2376", GPU, False), ("", Container.parse({}), False)],
)
async def test_does_not_wait_without_a_gpu_or_for_another_host(
    smi: Path, host: str, container: Container, *, asks: bool
) -> None:
    await wait_for_gpu_memory(DockerClient(host=host), container)

    assert (count_calls(smi) > 0) is asks


async def test_does_not_wait_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    await until_freed(within_s=3600)
