"""A green of another layout gets GPUs that nobody uses, or those of the server whose slot it takes."""

import os
from pathlib import Path
from typing import Literal

import pytest

from flettner.actuators.host.memory import GpuMemory, Host
from flettner.actuators.host.origin import Origin
from flettner.actuators.host.procfs import Process
from flettner.actuators.process.gpu_shortage import Claim, place_beside
from flettner.actuators.process.preflight import Preflight
from flettner.actuators.process.sleep import RunningServer, Sleeper
from flettner.actuators.vllm.gpu_placement import Placement, changes_layout
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.values import GPUS, Setting
from tests.support.fast_time import in_no_time

TP4: Setting = {"tensor_parallel_size": 4}
BLUE = Claim("chat-r0", {}, TP4)


def host(*free_gib: float) -> list[GpuMemory]:
    return [
        GpuMemory(index=at, uuid=f"GPU-{at}", free_mib=gib * 1024, total_mib=80 * 1024.0)
        for at, gib in enumerate(free_gib)
    ]


def placed(setting: Setting, gpus: list[GpuMemory], *others: Claim, own: Claim = BLUE) -> Placement:
    placement = place_beside(own, others, setting, gpus)
    assert placement is not None
    return placement


def test_green_gets_the_first_gpus_that_nobody_uses() -> None:
    placement = placed({}, host(8, 8, 8, 8, 40, 79.5, 79.5, 79.5), Claim("mail-r0", {GPUS: ""}, {}))

    assert placement.capacity.free
    assert placement.capacity.why == "this layout takes 1 GPU, and 3 of the host's 8 GPUs are free (5, 6, 7)"
    assert placement.resolve(beside=True) == {GPUS: ("0,1,2,3", "5")}
    assert not placement.shortage


def test_the_gpus_of_a_server_that_loads_are_not_free() -> None:
    loading = Claim("mail-r0", {"CUDA_VISIBLE_DEVICES": "4,5"}, {"tensor_parallel_size": 2})

    assert placed({}, host(8, 8, 8, 8, 79.5, 79.5, 79.5), loading).unused == ("6",)


def test_a_sliced_gpu_is_not_free() -> None:
    sliced = GpuMemory(index=4, uuid="GPU-4", free_mib=80 * 1024.0, total_mib=80 * 1024.0, sliced=True)

    assert placed({}, [*host(8, 8, 8, 8), sliced]).unused == ()


def test_in_the_slot_of_a_server_green_has_its_gpus_and_free_ones_where_it_needs_more() -> None:
    wider: Setting = {"tensor_parallel_size": 2, "data_parallel_size": 3}
    full, two_free = host(8, 8, 8, 8), host(8, 8, 8, 8, 79.5, 79.5)

    assert placed({}, full).resolve(beside=False) == {}
    assert placed(wider, two_free).resolve(beside=False) == {GPUS: ("0,1,2,3", "0,1,2,3,4,5")}
    assert not placed(wider, two_free).capacity.free
    assert placed(wider, full).shortage == (
        "this setting needs 6 GPUs, and the server has 4 while 0 more are free: request at most 4"
    )


def test_gpus_that_cannot_be_identified_leave_the_choice_as_it_was() -> None:
    assert place_beside(Claim("chat-r0", {"CUDA_VISIBLE_DEVICES": "MIG-1"}, {}), [], TP4, host(8)) is None


def test_only_the_parallel_sizes_make_another_layout() -> None:
    assert not changes_layout({"tensor_parallel_size": 1}, {"max_num_seqs": 8, "data_parallel_size": None})
    assert changes_layout(TP4, {"data_parallel_size": 4})


def test_a_server_with_its_own_gpus_sees_those_alone_in_the_order_of_nvidia_smi() -> None:
    origin = Origin(argv=("vllm", "serve", "m"), env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, cwd="/")

    env = origin.upgraded({GPUS: "5,6"}).env

    assert env["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def predicted(
    placement: Placement | None,
    home: Path,
    *,
    wanted: Strategy | Literal["auto"] = "auto",
    servers: int = 1,
) -> PreflightResult:
    """Of a change of the layout of this test's own process, which stands for a server."""

    async def find(_: RunningServer, __: Setting) -> Placement | None:
        return placement

    async def measure(_: RunningServer) -> Host:
        return Host()

    site = Site(target="chat", state_dir=home, epoch=1)
    own = Process(pid=os.getpid(), parent=0, group=0, session=0, started=0, zombie=False)
    running = RunningServer(name="chat-r0", address="127.0.0.1:9", process=own)
    times = StartTimes.at(home)
    times.record("vllm m", 50.0, warm=None)
    preflight = Preflight(
        origin=Origin(argv=("vllm", "serve", "m"), env={}, cwd="/"),
        times=times,
        sleeper=Sleeper(site=site, measure=measure),
        running=running,
        port=8101,
        find_placement=find,
    )
    fleet = [Server(name=f"chat-r{number}", setting={}) for number in range(servers)]
    return in_no_time(preflight.predict(fleet, {"model": "m", "tensor_parallel_size": 2}, wanted))


FREE = Placement(needed=2, own=("0",), unused=("1", "2"), host=3)
FULL = Placement(needed=2, own=("0", "1"), unused=(), host=2)


def test_free_gpus_are_named_and_not_shared(tmp_path: Path) -> None:
    result = predicted(FREE, tmp_path)

    assert (result.strategy, result.shares_card, result.outage_s) == ("surge", False, 0.0)
    assert result.resolved == {GPUS: ("0", "1,2")}
    assert "this layout takes 2 GPUs, and 2 of the host's 3 GPUs are free (1, 2)" in result.why


def test_without_free_gpus_the_only_server_is_swapped_and_the_outage_is_said(tmp_path: Path) -> None:
    result = predicted(FULL, tmp_path)

    assert (result.strategy, result.outage_s, result.resolved) == ("swap", 60.0, {})
    assert "0 of the host's 2 GPUs are free, and it is the only server" in result.why
    assert result.notes[0] == "the outage: 10 s to stop, 50 s to start"


@pytest.mark.parametrize(
    ("placement", "wanted", "servers", "why"),
    [
        (FULL, "surge", 1, "there is no capacity for one more server"),
        (FULL, "auto", 2, "processes are not replaced one by one: free some GPUs"),
        (Placement(needed=4, own=("0",), unused=("1",), host=2), "swap", 1, "request at most 2"),
    ],
    ids=["surge", "two servers", "too wide"],
)
def test_what_processes_cannot_do_is_refused_with_the_reason(
    placement: Placement, wanted: Strategy, servers: int, why: str, tmp_path: Path
) -> None:
    assert why in predicted(placement, tmp_path, wanted=wanted, servers=servers).problem


def test_where_the_gpus_are_not_known_green_starts_beside_blue_as_ever(tmp_path: Path) -> None:
    assert predicted(None, tmp_path).strategy == "surge"
    assert predicted(None, tmp_path).shares_card
