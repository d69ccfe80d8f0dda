import asyncio
import os
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.reading import Gpu, GpuSample
from flettner.sensors.nvidia_smi.csv_rows import FIELDS, OLD_NAMES, parse_gpu, retry_fields
from flettner.sensors.nvidia_smi.plugin import NvidiaSmi, _RowReader
from tests.unit.sensors.run_sensor import NOON, ReceivedSamples, run_sensor

RECORDED = Path(__file__).parents[2] / "data" / "gpu" / "nvidia-smi"
H200 = "0, GPU-0a, 100, 32362, 614, 143771, 627.40, 52, 0x0000000000000004, Disabled, NVIDIA H200"
SECOND = "1, GPU-0b, 3, 0, 614, 143771, 77.71, 28, 0x0000000000000001, Disabled, NVIDIA H200"
SLICED = "0, GPU-0a, [N/A], 32362, 614, 143771, 310.00, 41, 0x0000000000000000, Enabled, NVIDIA H200"

DRIVER_GONE = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


def stub(folder: Path, script: str) -> str:
    """An executable that stands in for nvidia-smi; $starts counts how often it was started, from 1."""
    path = folder / "nvidia-smi"
    count = f'echo "$@" >> "{folder}/starts"; starts=$(grep -c "" "{folder}/starts")\n'
    written = path.with_suffix(".new")
    written.write_text(f"#!/bin/sh\n{count}{script}\n")
    written.chmod(written.stat().st_mode | stat.S_IXUSR)
    written.rename(path)
    return str(path)


def starts(folder: Path) -> list[str]:
    path = folder / "starts"
    return path.read_text().splitlines() if path.exists() else []


def every_tick(*rows: str) -> str:
    quoted = " ".join(f"'{row}'" for row in rows)
    return f"while :; do printf '%s\\n' {quoted}; sleep 0.2; done"


async def collect_until(sensor: NvidiaSmi, seen: Callable[[ReceivedSamples], object]) -> ReceivedSamples:
    async with run_sensor(sensor) as received:
        await received.until(lambda: seen(received))
    return received


def quick(command: str, *, stalled_after_s: float = 20.0) -> NvidiaSmi:
    return NvidiaSmi(command=command, every_s=0.2, stalled_after_s=stalled_after_s, retry_at_most_s=0.05)


async def test_a_row_becomes_a_gpu_whose_reserved_memory_counts_as_used(tmp_path: Path) -> None:
    received = await collect_until(
        quick(stub(tmp_path, every_tick(H200))), lambda h: len(h.of(GpuSample)) >= 2
    )

    assert received.states() == []
    assert received.of(GpuSample)[0] == GpuSample(
        at=NOON,
        gpus=(
            Gpu(
                index=0,
                uuid="GPU-0a",
                name="NVIDIA H200",
                utilization=1.0,
                memory_used_mib=32976.0,
                memory_total_mib=143771.0,
                power_w=627.4,
                temperature_c=52.0,
                throttle_reasons=4,
                mig=False,
            ),
        ),
    )


async def test_the_rows_of_one_tick_become_one_sample(tmp_path: Path) -> None:
    received = await collect_until(
        quick(stub(tmp_path, every_tick(H200, SECOND))), lambda h: len(h.of(GpuSample)) >= 3
    )

    assert [[gpu.uuid for gpu in sample.gpus] for sample in received.of(GpuSample)[:3]] == [
        ["GPU-0a", "GPU-0b"]
    ] * 3


async def test_one_child_process_reports_all_fields_at_the_configured_interval(tmp_path: Path) -> None:
    await collect_until(quick(stub(tmp_path, every_tick(H200))), lambda h: len(h.of(GpuSample)) >= 3)

    assert starts(tmp_path) == [f"--query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits --loop-ms=200"]


async def test_only_the_named_gpus_are_asked_for(tmp_path: Path) -> None:
    sensor = replace(quick(stub(tmp_path, every_tick(H200))), gpus=(0, 3))

    await collect_until(sensor, lambda seen: seen.of(GpuSample))

    assert "--id=0,3" in starts(tmp_path)[0].split()


@pytest.mark.parametrize("name", ["sensor", "sensor-old"])
def test_reads_an_h100_at_rest_under_both_names_of_the_clock_reasons(name: str) -> None:
    fields = [OLD_NAMES.get(field, field) for field in FIELDS] if name == "sensor-old" else FIELDS
    rows = [row for row in (RECORDED / f"{name}.txt").read_text().splitlines() if row[:1].isdigit()]
    assert rows

    for row in rows:
        gpu = parse_gpu(row, fields)
        assert (gpu.name, gpu.utilization, gpu.mig) == ("NVIDIA H100 80GB HBM3", 0.0, False)
        assert (gpu.memory_used_mib, gpu.memory_total_mib) == (480.0, 81559.0)
        assert (gpu.throttle_reasons, gpu.temperature_c) == (1, 31.0)
        assert gpu.power_w == pytest.approx(70.2, abs=0.1)


def test_reads_a_loaded_h100_with_two_servers() -> None:
    row = "0, GPU-1, 100, 68421, 480, 81559, 410.20, 45, 0x0000000000000000, Disabled, NVIDIA H100 80GB HBM3"
    gpu = parse_gpu(row, FIELDS)

    assert (gpu.utilization, gpu.memory_used_mib, gpu.throttle_reasons) == (1.0, 68901.0, 0)


@pytest.mark.parametrize(
    ("name", "meaning"), [("badfield", "unknown field"), ("badoption", "unknown option")]
)
async def test_says_why_an_h100s_driver_refused(tmp_path: Path, name: str, meaning: str) -> None:
    _, *lines, status = filter(None, (RECORDED / f"{name}.txt").read_text().splitlines())
    output = "; ".join(f"echo {shlex.quote(line)}" for line in lines)
    sensor = quick(stub(tmp_path, f"{output}; exit {status.removeprefix('rc ')}"))
    received = await collect_until(sensor, lambda received: received.states())

    why = received.states()[0].why
    assert f"{status.replace('rc', 'exit')}: {meaning}" in why
    assert lines[0][:40] in why


def test_a_gpu_in_mig_mode_has_no_utilization() -> None:
    gpu = parse_gpu(SLICED, FIELDS)

    assert gpu.mig
    assert gpu.utilization is None
    assert gpu.memory_used_mib == 32976.0


@pytest.mark.parametrize(
    "cell",
    ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "[GPU is lost]"],
)
def test_values_missing_from_the_driver_are_none_not_zero(cell: str) -> None:
    row = ", ".join(["3", "GPU-3", *[cell] * 8, "NVIDIA L40S"])

    assert parse_gpu(row, FIELDS) == Gpu(index=3, uuid="GPU-3", name="NVIDIA L40S")


def test_a_gpu_name_may_contain_a_comma() -> None:
    assert parse_gpu(H200.replace("NVIDIA H200", "NVIDIA H200, 141 GB"), FIELDS).name == "NVIDIA H200, 141 GB"


@pytest.mark.parametrize(
    "row",
    [
        "",
        "\x00\x01",
        "No devices were found",
        H200[: len(H200) // 2],
        H200.replace("627.40", "many"),
        H200.replace("0x0000000000000004", "Active"),
        H200.replace("0, GPU", "zero, GPU"),
    ],
)
def test_an_invalid_row_is_rejected(row: str) -> None:
    with pytest.raises(SensorError):
        parse_gpu(row, FIELDS)


@pytest.mark.parametrize("cell", ["nan", "inf", "-1", "1e300", "9" * 400])
def test_an_impossible_number_is_none(cell: str) -> None:
    assert parse_gpu(H200.replace("627.40", cell), FIELDS).power_w is None
    assert parse_gpu(H200.replace(" 100,", f" {cell},"), FIELDS).utilization is None
    assert parse_gpu(H200.replace("32362", cell), FIELDS).memory_used_mib is None


@pytest.mark.parametrize("cell", ["-0x4", "0x" + "f" * 17])
def test_a_mask_that_is_not_64_bits_is_none(cell: str) -> None:
    assert parse_gpu(H200.replace("0x0000000000000004", cell), FIELDS).throttle_reasons is None


@pytest.mark.parametrize("cell", ["-1", "256", "1_0", "9" * 5000, "\u0661"])
def test_a_row_with_an_impossible_gpu_is_rejected(cell: str) -> None:
    with pytest.raises(SensorError):
        parse_gpu(H200.replace("0, GPU", f"{cell}, GPU", 1), FIELDS)


CELLS = (
    st.integers().map(str)
    | st.integers(0, 20_000).map(lambda digits: "9" * digits)
    | st.floats().map(str)
    | st.integers().map(hex)
    | st.sampled_from(["[N/A]", "N/A", "", "0", "Enabled", "GPU-0a", "\x00", "1e308"])
    | st.text(max_size=20)
)
GOOD = H200.split(", ")
ROWS = st.text() | st.tuples(*(CELLS | st.just(cell) for cell in GOOD)).map(", ".join)


@given(ROWS)
def test_any_row_is_a_gpu_with_valid_numbers_or_is_rejected(row: str) -> None:
    try:
        gpu = parse_gpu(row, FIELDS)
    except SensorError:
        return

    numbers = (gpu.memory_used_mib, gpu.memory_total_mib, gpu.power_w, gpu.temperature_c)
    assert all(0 <= number < inf for number in numbers if number is not None)
    assert gpu.utilization is None or 0 <= gpu.utilization <= 1
    assert gpu.throttle_reasons is None or 0 <= gpu.throttle_reasons < 2**64
    assert 0 <= gpu.index < 256
    assert len(gpu.uuid) + len(gpu.name) <= 1024


@given(st.lists(st.binary(max_size=200) | ROWS.map(str.encode) | st.just(H200.encode()), max_size=20))
def test_any_bytes_end_as_rows_or_as_an_error_of_the_source(printed: list[bytes]) -> None:
    async def read() -> None:
        stream = asyncio.StreamReader()
        stream.feed_data(b"\n".join(printed))
        stream.feed_eof()
        rows = _RowReader(stream, FIELDS, ticks.append)
        with suppress(SensorError):
            await rows.read(quiet_s=1.0, stalled_after_s=1.0)
        assert len(rows.unreadable_text) <= 300

    ticks: list[tuple[Gpu, ...]] = []
    asyncio.run(read())

    assert all(len({gpu.index for gpu in tick}) == len(tick) <= 256 for tick in ticks)


def test_a_rejected_field_is_requested_by_its_older_name_and_then_dropped() -> None:
    older = retry_fields(FIELDS, 'Field "clocks_event_reasons.active" is not a valid field to query.')
    assert older is not None
    oldest = retry_fields(older, 'Field "clocks_throttle_reasons.active" is not a valid field to query.')

    assert len(older) == len(FIELDS)
    assert "clocks_throttle_reasons.active" in older
    assert oldest == tuple(name for name in FIELDS if name != "clocks_event_reasons.active")
    assert retry_fields(FIELDS, 'Field "uuid" is not a valid field to query.') is None


async def test_an_older_driver_gets_the_older_field_name(tmp_path: Path) -> None:
    refusal = 'echo "Field \\"clocks_event_reasons.active\\" is not a valid field to query."; exit 2'
    command = stub(tmp_path, f'case "$1" in *event_reasons*) {refusal};; esac\n{every_tick(H200)}')

    received = await collect_until(quick(command), lambda h: bool(h.of(GpuSample)))

    assert received.states() == []
    assert received.of(GpuSample)[0].gpus[0].throttle_reasons == 4


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f'echo "{DRIVER_GONE}"; exit 9', "exit 9: no NVIDIA driver: load it"),
        ('echo "No devices were found"; exit 6', "exit 6: no NVIDIA device was found"),
        (f"echo '{H200}'; echo 'GPU is lost.' >&2; exit 15", "exit 15: a GPU has fallen off the bus"),
        ("exit 0", "exit 0"),
        ("kill -9 $$", "exit -9"),
    ],
    ids=["no driver", "no device", "lost", "well", "killed"],
)
async def test_a_child_process_that_exits_is_reported_once_and_restarted(
    tmp_path: Path, script: str, why: str
) -> None:
    command = stub(tmp_path, f"[ $starts -gt 3 ] || {{ {script}; }}\n{every_tick(H200)}")

    received = await collect_until(quick(command), lambda h: len(h.states()) > 1 and len(h.of(GpuSample)) > 2)

    assert len(starts(tmp_path)) == 4
    assert [state.available for state in received.states()][-2:] == [False, True]
    assert why in received.states()[0].why
    assert {state.source for state in received.states()} == {"nvidia_smi"}


async def test_a_hung_child_process_is_killed_with_its_descendants_and_restarted(tmp_path: Path) -> None:
    hang = f"echo $$ > '{tmp_path}/hung'; sleep 600 & echo $! > '{tmp_path}/grandchild'; wait"
    command = stub(tmp_path, f"[ $starts -gt 1 ] || {{ {hang}; }}\n{every_tick(H200)}")

    received = await collect_until(quick(command, stalled_after_s=1.0), lambda h: bool(h.of(GpuSample)))

    assert [state.available for state in received.states()] == [False, True]
    assert "no readable row for 1 s, killed" in received.states()[0].why
    for name in ("hung", "grandchild"):
        assert not runs(int((tmp_path / name).read_text()))


async def test_no_second_child_process_starts_while_the_first_runs(tmp_path: Path) -> None:
    outlives = f"setsid sleep 4 & echo $! > '{tmp_path}/straggler'; exec sleep 600"
    two = f"grep -q sleep /proc/$(cat '{tmp_path}/straggler')/cmdline && touch '{tmp_path}/two'"
    command = stub(tmp_path, f"[ $starts -gt 1 ] || {{ {outlives}; }}\n{two}\n{every_tick(H200)}")

    received = await collect_until(quick(command, stalled_after_s=0.5), lambda h: bool(h.of(GpuSample)))

    assert [state.available for state in received.states()] == [False, True]
    assert not (tmp_path / "two").exists()


def runs(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "garbage",
    ["while :; do echo lalala; sleep 0.1; done", "yes lalala", "tr '\\0' x < /dev/zero", "cat /dev/urandom"],
    ids=["slow", "fast", "one endless line", "binary"],
)
async def test_garbage_is_reported_and_the_child_process_restarted(tmp_path: Path, garbage: str) -> None:
    command = stub(tmp_path, f"[ $starts -gt 2 ] || {{ {garbage}; }}\n{every_tick(H200)}")

    received = await collect_until(quick(command, stalled_after_s=1.0), lambda h: bool(h.of(GpuSample)))

    assert [state.available for state in received.states()] == [False, True]


async def test_one_unreadable_row_is_skipped(tmp_path: Path) -> None:
    command = stub(tmp_path, every_tick(H200, "1, GPU-0b, torn", SECOND.replace("1,", "2,", 1)))

    received = await collect_until(quick(command), lambda h: len(h.of(GpuSample)) >= 2)

    assert received.states() == []
    assert [gpu.index for gpu in received.of(GpuSample)[0].gpus] == [0, 2]


async def test_a_missing_command_is_reported_once_and_found_when_it_appears(tmp_path: Path) -> None:
    async with run_sensor(quick(str(tmp_path / "nvidia-smi"))) as received:
        await received.until(received.states)
        await asyncio.sleep(0.3)
        stub(tmp_path, every_tick(H200))
        await received.until(lambda: received.of(GpuSample))

    assert [state.available for state in received.states()] == [False, True]
    assert "cannot be started: No such file or directory" in received.states()[0].why


async def test_a_file_that_is_not_executable_is_reported(tmp_path: Path) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_bytes(os.urandom(64))
    command.chmod(0o700)

    received = await collect_until(quick(str(command)), lambda h: bool(h.states()))

    assert "cannot be started" in received.states()[0].why


async def test_cancellation_leaves_no_child_process(tmp_path: Path) -> None:
    command = stub(tmp_path, f"echo $$ > '{tmp_path}/pid'\n{every_tick(H200)}")

    await collect_until(quick(command), lambda h: bool(h.of(GpuSample)))

    assert not runs(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    "options",
    [
        {"command": ""},
        {"command": "nvidia\0smi"},
        {"every_s": 0},
        {"every_s": float("nan")},
        {"every_s": True},
        {"retry_at_most_s": -1},
        {"every_s": 10, "stalled_after_s": 5},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        NvidiaSmi(**options)  # type: ignore[arg-type]
