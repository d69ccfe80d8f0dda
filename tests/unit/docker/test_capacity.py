from typing import Any

import pytest

from flettner.actuators.docker.capacity import (
    Holding,
    find_placement,
    free_capacity,
    gpu_shortage,
    host_shortage,
    measure_holding,
    measure_host,
)
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container, Gpus
from flettner.actuators.host.memory import GpuMemory, Host
from flettner.actuators.vllm.gpu_demand import gpus_needed
from flettner.vllm_facts.values import Setting
from tests.support.docker_documents import container

Json = dict[str, Any]

GIB = 1024**3
NOTHING = Gpus()


def parsed(**options: Any) -> Container:  # noqa: ANN401
    return Container.parse(container(**options))


def gpu_request(count: int = 0, *ids: str) -> Json:
    request = {"Driver": "", "Count": count, "DeviceIDs": list(ids) or None, "Capabilities": [["gpu"]]}
    return {"DeviceRequests": [request]}


def gpus_in(host: Json, *env: str) -> Gpus:
    return parsed(host=host, config={"Env": list(env)}).gpus


def gpu(index: int, free_gib: float, total_gib: float = 80.0, *, sliced: bool = False) -> GpuMemory:
    free, total = free_gib * 1024, total_gib * 1024
    return GpuMemory(index=index, uuid=f"GPU-{index}abc", free_mib=free, total_mib=total, sliced=sliced)


def held(gpus: Gpus = NOTHING, **other: Any) -> Holding:  # noqa: ANN401
    defaults = {"name": "vllm", "cpus": "", "limit": 0, "memory": 2 * GIB, "utilization": 0.4}
    return Holding(gpus=gpus, **{**defaults, **other})


def host(*gpus: GpuMemory, memory: int | None = 64 * GIB) -> Host:
    return Host(memory=memory, memory_total=100 * GIB, gpus=gpus)


@pytest.mark.parametrize(
    ("limit", "asked", "why"),
    [
        (0, 200, "this host has 100.0 GiB"),
        (300 * GIB, 200, "this host has 100.0 GiB"),
        (16 * GIB, 20, "vllm has a limit of 16.0 GiB"),
    ],
)
def test_flags_that_ask_for_more_host_memory_than_there_is_are_refused(
    limit: int, asked: int, why: str
) -> None:
    blue = parsed(host={"Memory": limit})

    assert why in host_shortage(blue, {"kv_offloading_size": asked}, host())
    assert host_shortage(blue, {"kv_offloading_size": 10}, host()) == ""


def test_room_beside_a_server_is_also_for_what_the_flags_ask_for() -> None:
    room = free_capacity([held()], {"kv_offloading_size": 80}, host())

    assert room.free is False
    assert "may need 80.0 GiB (by its flags)" in room.why


ON_FIRST = Gpus(ids=("0",))
SMALL: Setting = {"gpu_memory_utilization": 0.4}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Gpus()),
        (gpu_request(-1), Gpus(all=True)),
        (gpu_request(2), Gpus(ids=("0", "1"))),
        (gpu_request(0, "3", "GPU-7f"), Gpus(ids=("3", "GPU-7f"))),
        (
            {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=2"], "Capabilities": None}]},
            Gpus(ids=("2",)),
        ),
        (
            {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]},
            Gpus(all=True),
        ),
        ({"Devices": [{"PathOnHost": "/dev/nvidia1"}, {"PathOnHost": "/dev/nvidiactl"}]}, Gpus(ids=("1",))),
        ({"Devices": [{"PathOnHost": "/dev/fuse"}]}, Gpus()),
    ],
)
def test_the_gpus_of_a_container_are_the_assigned_ones(options: Json, expected: Gpus) -> None:
    assert gpus_in(options) == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("all", Gpus(all=True)),
        ("0,2", Gpus(ids=("0", "2"))),
        ("none", Gpus()),
        ("void", Gpus()),
        ("", Gpus()),
    ],
)
def test_the_nvidia_runtime_reads_the_gpus_from_the_environment(visible: str, expected: Gpus) -> None:
    assert gpus_in({"Runtime": "nvidia"}, f"NVIDIA_VISIBLE_DEVICES={visible}") == expected


def test_gpus_in_the_environment_of_an_image_give_none_to_a_container() -> None:
    assert gpus_in({"Runtime": "runc"}, "NVIDIA_VISIBLE_DEVICES=all") == Gpus()


@pytest.mark.parametrize(
    ("options", "visible", "expected"),
    [
        (gpu_request(0, "2", "3"), "1", Gpus(ids=("3",))),
        (gpu_request(0, "2", "3"), "1,0", Gpus(ids=("3", "2"))),
        (gpu_request(0, "2", "3"), "0,5,1", Gpus(ids=("2",))),
        (gpu_request(-1), "1", Gpus(ids=("1",))),
        (gpu_request(-1), "", Gpus()),
        (gpu_request(-1), "-1", Gpus()),
        (gpu_request(0, "GPU-7f", "GPU-8e"), "GPU-8e", Gpus(ids=("GPU-8e",))),
        ({}, "0", Gpus()),
    ],
)
def test_cuda_visible_devices_counts_within_the_gpus_of_the_container(
    options: Json, visible: str, expected: Gpus
) -> None:
    assert gpus_in(options, f"CUDA_VISIBLE_DEVICES={visible}") == expected


@pytest.mark.parametrize(
    "options",
    [gpu_request(0, "MIG-7f"), gpu_request(0, "0:1"), {"Devices": [{"PathOnHost": "/dev/kfd"}]}],
    ids=["slice", "slice by number", "another maker"],
)
def test_unknown_devices_count_as_gpus(options: Json) -> None:
    gpus = gpus_in(options)

    assert gpus.any
    assert gpus.unknown
    assert free_capacity([held(gpus)], SMALL, host(gpu(0, 80))).free is None


def test_a_gpu_with_enough_free_memory_is_capacity() -> None:
    capacity = free_capacity([held(ON_FIRST)], SMALL, host(gpu(0, 40)))

    assert capacity.free is True
    assert "GPU 0" in capacity.why
    assert "40.0 GiB of 80.0 GiB free" in capacity.why
    assert "takes 32.0 GiB" in capacity.why


@pytest.mark.parametrize("setting", [{}, {"gpu_memory_utilization": 0.92}])
def test_the_default_utilization_is_nearly_the_whole_gpu(setting: Setting) -> None:
    assert free_capacity([held(ON_FIRST)], setting, host(gpu(0, 60))).free is False


def test_memory_that_running_servers_may_still_take_is_not_free() -> None:
    capacity = free_capacity([held(ON_FIRST, utilization=0.7)], SMALL, host(gpu(0, 60)))

    assert capacity.free is False
    assert "in addition to the 0.7 of those" in capacity.why


def test_another_free_gpu_is_no_capacity_for_a_like_container() -> None:
    assert free_capacity([held(ON_FIRST)], SMALL, host(gpu(0, 5), gpu(1, 80))).free is False


def test_every_gpu_of_the_setting_needs_capacity() -> None:
    both: Setting = {"gpu_memory_utilization": 0.4, "tensor_parallel_size": 2}
    two = Gpus(ids=("0", "1"))

    assert free_capacity([held(two)], both, host(gpu(0, 40), gpu(1, 5))).free is False
    assert free_capacity([held(two)], SMALL, host(gpu(0, 40), gpu(1, 5))).free is True
    assert free_capacity([held(Gpus(all=True))], both, host(gpu(0, 40), gpu(1, 40))).free is True


def test_finds_a_gpu_by_its_uuid() -> None:
    assert free_capacity([held(Gpus(ids=("GPU-1a",)))], SMALL, host(gpu(0, 5), gpu(1, 40))).free is True


@pytest.mark.parametrize(
    ("gpus", "measured", "why"),
    [
        (ON_FIRST, Host(memory=64 * GIB, why="nvidia-smi hangs"), "nvidia-smi hangs"),
        (ON_FIRST, host(gpu(1, 40)), "GPU 0, which nvidia-smi does not show"),
        (ON_FIRST, host(GpuMemory(index=0, uuid="GPU-0", free_mib=None, total_mib=1.0)), "does not report"),
        (ON_FIRST, host(gpu(0, 80, sliced=True)), "sliced"),
        (Gpus(all=True), host(), "which nvidia-smi does not show"),
    ],
)
def test_a_gpu_that_cannot_be_measured_is_no_capacity(gpus: Gpus, measured: Host, why: str) -> None:
    capacity = free_capacity([held(gpus)], SMALL, measured)

    assert capacity.free is None
    assert why in capacity.why


def test_pinned_cpus_leave_no_capacity_for_a_like_server() -> None:
    capacity = free_capacity([held(cpus="0-3")], {}, host())

    assert capacity.free is False
    assert "pinned to its CPUs 0-3" in capacity.why


@pytest.mark.parametrize(
    ("holding", "free"),
    [
        (held(limit=50 * GIB), True),
        (held(limit=60 * GIB), False),  # 5 of 100 GiB are left alone
        (held(memory=40 * GIB), True),
        (held(memory=50 * GIB), False),  # a quarter more is reckoned with
        (held(memory=None), None),
    ],
)
def test_the_host_needs_enough_free_memory(holding: Holding, free: bool | None) -> None:
    assert free_capacity([holding], {}, host(memory=64 * GIB)).free is free


def test_a_host_that_cannot_be_measured_has_unknown_capacity() -> None:
    capacity = free_capacity([held()], {}, Host(why="the Engine is on another host, tcp://gpu7:2376"))

    assert capacity.free is None
    assert "gpu7" in capacity.why


def test_one_server_without_capacity_decides() -> None:
    capacity = free_capacity(
        [held(name="a"), held(name="b", memory=None), held(name="c", cpus="1")], {}, host()
    )

    assert capacity.free is False
    assert "a server like c is pinned" in capacity.why


def test_no_server_is_no_capacity() -> None:
    assert free_capacity([], {}, host()).free is None


@pytest.mark.parametrize(
    ("setting", "needed"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 3}, 6),
        ({"data_parallel_size": 4, "tensor_parallel_size": 2}, 8),
        ({"data_parallel_size": 8, "data_parallel_size_local": 2}, 2),
        ({"tensor_parallel_size": "two"}, 1),
    ],
)
def test_a_setting_needs_a_gpu_for_each_rank(setting: Setting, needed: int) -> None:
    assert gpus_needed(setting) == needed


def test_a_setting_that_needs_more_gpus_than_the_container_has_is_named_with_the_fix() -> None:
    setting: Setting = {"tensor_parallel_size": 4}
    measured = host(gpu(0, 1), gpu(1, 1))

    assert "needs 4 GPUs, and vllm has 2" in gpu_shortage(parsed(host=gpu_request(2)), setting, measured)
    assert "--gpus" in gpu_shortage(parsed(host=gpu_request(-1)), setting, measured)


@pytest.mark.parametrize(
    "options", [gpu_request(4), {}, gpu_request(0, "MIG-7f")], ids=["enough", "none", "not known"]
)
def test_gpus_are_too_few_only_where_they_are_known_to_be(options: Json) -> None:
    assert gpu_shortage(parsed(host=options), {"tensor_parallel_size": 4}, host(gpu(0, 1))) == ""


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("", True),
        ("unix:///var/run/docker.sock", True),
        ("tcp://127.0.0.1:2375", True),
        ("tcp://gpu7:2376", False),
        ("ssh://root@gpu7", False),
    ],
)
def test_measures_the_local_host_only(address: str, local: bool) -> None:
    assert DockerClient(host=address).is_local is local


async def test_does_not_measure_gpus_that_no_server_has() -> None:
    measured = await measure_host(DockerClient(), [parsed()])

    assert measured.gpus is None
    assert measured.memory
    assert (await measure_host(DockerClient(host="tcp://gpu7:2376"), [parsed()])).memory is None


async def test_a_memory_limit_is_the_need_of_a_server() -> None:
    nobody = DockerClient(host="unix:///nowhere/docker.sock")
    limited = parsed(host={"Memory": 3 * GIB, "CpusetCpus": "0"})

    holding = await measure_holding(limited, nobody, {"gpu_memory_utilization": 0.5})

    assert (holding.name, holding.limit, holding.cpus, holding.utilization) == ("vllm", 3 * GIB, "0", 0.5)
    assert (await measure_holding(parsed(), nobody, {})).memory is None


def test_a_container_of_another_layout_gets_gpus_that_nobody_uses() -> None:
    four: Setting = {"tensor_parallel_size": 4}
    gpus = [*(gpu(index, 8) for index in range(4)), gpu(4, 79.5), gpu(5, 30)]
    blue = held(Gpus(all=True))

    placement = find_placement([blue], four, {}, host(*gpus))
    assert placement is not None

    assert placement.own == ("0", "1", "2", "3")
    assert placement.unused == ("4",)
    assert free_capacity([blue], {}, host(*gpus), placement).free
    assert not free_capacity([blue], {}, host(*gpus, memory=GIB), placement).free
    assert find_placement([blue], four, {**four, "max_num_seqs": 8}, host(*gpus)) is None
    assert find_placement([held()], four, {}, host(*gpus)) is None
