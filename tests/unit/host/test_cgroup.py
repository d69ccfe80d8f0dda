"""The memory that a process may still take, from the files of its control groups."""

from pathlib import Path

import pytest

from flettner.actuators.host.cgroup import CgroupRoom, find_container_of, find_room

GIB = 1 << 30
UNIT = "system.slice/flettner.service"
V1, V2 = f"4:memory:/{UNIT}\n0::/\n", f"0::/{UNIT}\n"


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    put(tmp_path / "proc" / "7", cgroup=V2.strip())
    return tmp_path


def room(host: Path) -> CgroupRoom | None:
    return find_room(7, proc=host / "proc", root=host / "cgroup")


def limited(folder: Path, limit: str, used: int, cache: int = 0) -> None:
    stat = f"anon 1\ninactive_file {cache}"
    put(folder, memory__max=limit, memory__current=str(used), memory__stat=stat)


def test_a_process_without_a_limit_has_none(host: Path) -> None:
    limited(host / "cgroup" / UNIT, "max", 5 * GIB)

    assert room(host) is None


def test_memory_of_files_is_free(host: Path) -> None:
    limited(host / "cgroup" / UNIT, str(16 * GIB), 10 * GIB, cache=4 * GIB)

    assert room(host) == CgroupRoom(free=10 * GIB, limit=16 * GIB)


def test_the_tightest_group_above_counts(host: Path) -> None:
    limited(host / "cgroup" / UNIT, str(64 * GIB), 10 * GIB)
    limited(host / "cgroup" / "system.slice", str(32 * GIB), 30 * GIB)

    assert room(host) == CgroupRoom(free=2 * GIB, limit=32 * GIB)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(8 * GIB, CgroupRoom(free=6 * GIB, limit=8 * GIB)), (9223372036854771712, None)],
    ids=["limited", "not limited"],
)
def test_version_1_of_the_interface_is_read(host: Path, limit: int, expected: CgroupRoom | None) -> None:
    put(host / "proc" / "7", cgroup=V1.strip())
    put(
        host / "cgroup" / "memory" / UNIT,
        memory__limit_in_bytes=str(limit),
        memory__usage_in_bytes=str(3 * GIB),
        memory__stat=f"total_inactive_file {GIB}",
    )

    assert room(host) == expected


def test_an_ended_process_has_no_limit(tmp_path: Path) -> None:
    assert room(tmp_path) is None


@pytest.mark.parametrize(
    ("groups", "container"),
    [
        (f"0::/system.slice/docker-{'a1' * 32}.scope\n", "a1" * 32),
        (f"4:memory:/docker/{'b2' * 32}\n0::/\n", "b2" * 32),
        (V2, ""),
        ("0::/\n", ""),
    ],
)
def test_the_container_of_a_process_is_in_the_names_of_its_groups(
    tmp_path: Path, groups: str, container: str
) -> None:
    put(tmp_path / "7", cgroup=groups)

    assert find_container_of(7, proc=tmp_path) == container
    assert find_container_of(8, proc=tmp_path) == ""
