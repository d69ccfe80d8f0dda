import asyncio
import stat
from pathlib import Path

import pytest

from flettner.actuators.host import memory
from flettner.actuators.host.memory import GpuMemory, gpus
from flettner.agent.domain.errors import ActError

H200 = "0, GPU-0a, 32362, 614, 143771, Disabled"


def stub(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/asked"\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def says(*rows: str) -> str:
    return "\n".join(f"echo '{row}'" for row in rows)


async def test_free_memory_is_neither_used_nor_reserved(tmp_path: Path) -> None:
    second = H200.replace("0, GPU-0a, 32362", "1, GPU-1b, 0")

    assert await gpus(stub(tmp_path, says(H200, second))) == (
        GpuMemory(index=0, uuid="GPU-0a", free_mib=110795.0, total_mib=143771.0),
        GpuMemory(index=1, uuid="GPU-1b", free_mib=143157.0, total_mib=143771.0),
    )


async def test_reports_a_mig_gpu(tmp_path: Path) -> None:
    (gpu,) = await gpus(stub(tmp_path, says(H200.replace("Disabled", "Enabled"))))

    assert gpu.sliced


@pytest.mark.parametrize("cell", ["[N/A]", "[Insufficient Permissions]", "nan", "-1"])
async def test_unreported_memory_is_not_free(tmp_path: Path, cell: str) -> None:
    (gpu,) = await gpus(stub(tmp_path, says(H200.replace("32362", cell))))

    assert gpu.free_mib is None


async def test_queries_fewer_fields_of_an_older_driver(tmp_path: Path) -> None:
    refusal = 'echo "Field \\"memory.reserved\\" is not a valid field to query."; exit 2'
    command = stub(tmp_path, f'case "$1" in *reserved*) {refusal};; esac\n{says("0, GPU-0a, 100, 1000")}')

    assert await gpus(command) == (GpuMemory(index=0, uuid="GPU-0a", free_mib=900.0, total_mib=1000.0),)
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'No devices were found'; exit 6", "exit 6: No devices were found"),
        (says("lalala"), "cannot read this row: lalala"),
        (says(H200.replace("0, GPU", "zero, GPU")), "cannot read this row"),
        (says(H200.replace("0, GPU", "9" * 5000 + ", GPU")), "cannot read this row"),
        ("yes", "prints no table: the answer is larger than 8388608 bytes"),
    ],
)
async def test_reports_the_cause_of_a_failure(tmp_path: Path, script: str, why: str) -> None:
    with pytest.raises(ActError, match=why):
        await gpus(stub(tmp_path, script))


async def test_reports_a_host_without_nvidia_smi(tmp_path: Path) -> None:
    with pytest.raises(ActError, match="cannot be started: No such file"):
        await gpus(str(tmp_path / "nvidia-smi"))


async def test_kills_a_hanging_nvidia_smi_with_all_its_children(tmp_path: Path) -> None:
    hang = f"echo $$ > '{tmp_path}/hung'; sleep 600 & echo $! > '{tmp_path}/grandchild'; wait"

    with pytest.raises(ActError, match="did not answer within 1 s, killed"):
        await gpus(stub(tmp_path, hang), within_s=1.0)

    for name in ("hung", "grandchild"):
        await end_of(int((tmp_path / name).read_text()))


async def test_cancelling_leaves_no_child_process(tmp_path: Path) -> None:
    reading = asyncio.create_task(gpus(stub(tmp_path, f"echo $$ > '{tmp_path}/pid'; sleep 600")))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await asyncio.sleep(0.02)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    await end_of(int((tmp_path / "pid").read_text()))


async def end_of(pid: int) -> None:
    """Where the machine is busy, a killed process runs until its turn comes."""
    async with asyncio.timeout(30):
        while runs(pid):
            await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_reads_the_memory_of_the_host() -> None:
    free, total = await memory.free_memory(), await memory.total_memory()

    assert free is not None
    assert total is not None
    assert 0 < free < total


def test_unreported_host_memory_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: lots kB\nMemFree: 12 kB\n")

    assert memory._meminfo(tmp_path / "meminfo", "MemTotal") is None
    assert memory._meminfo(tmp_path / "meminfo", "MemAvailable") is None
    assert memory._meminfo(tmp_path / "meminfo", "MemFree") == 12 * 1024
    assert memory._meminfo(tmp_path / "nowhere", "MemFree") is None
