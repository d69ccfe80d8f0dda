from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from flettner.actuators.docker import capacity
from flettner.actuators.docker.container import Container
from flettner.actuators.docker.lifecycle import Lifecycle
from flettner.actuators.docker.log_head import find_start, measured_start, read_start_log
from flettner.actuators.docker.preflight import Preflight
from flettner.actuators.docker.registry import Registry, container_name
from flettner.actuators.docker.sleep import Sleeper
from flettner.actuators.vllm.start_times import StartTimes, SwapPart
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.values import Setting
from tests.integration.docker.test_dry_run import package
from tests.support.claimed_gpu import DEV, SLEEPS, ClaimedGpu
from tests.support.docker_documents import container
from tests.support.docker_site import Bench, RunningContainer
from tests.support.real_vllm import REPOSITORY

Json = dict[str, Any]

GIB = 1024**3


class PreflightRig:
    """Preflights of changes of the servers of one bench."""

    def __init__(self, bench: Bench, state_dir: Path) -> None:
        self.bench = bench
        self.site = Site(target=bench.prefix + "chat", state_dir=state_dir, epoch=1)
        self.times = StartTimes.at(state_dir)
        self.measure = capacity.measure_for

    async def ask(
        self,
        to: Setting,
        *containers: RunningContainer,
        wanted: Strategy | Literal["auto"] = "auto",
        over: Json | None = None,
    ) -> PreflightResult:
        """`over`: overrides of the inspected HostConfig."""
        blues = [await self.bench.inspect(container) for container in containers]
        for blue in blues:
            blue["HostConfig"] |= over or {}
        return await self.preflight(to, blues, wanted)

    async def preflight(
        self, to: Setting, blues: Sequence[Json], wanted: Strategy | Literal["auto"] = "auto"
    ) -> PreflightResult:
        containers = [Container.parse(blue) for blue in blues]
        servers = [Server(name=blue.name, setting=blue.serve.setting) for blue in containers]
        registry = Registry(client=self.bench.client, site=self.site, names=())
        sleeper = Sleeper(lifecycle=Lifecycle(registry=registry, times=self.times), measure=self.measure)
        setting = {**servers[-1].setting, **to}
        asked = Preflight(sleeper=sleeper, blues=containers, servers=servers, setting=setting)
        return await asked.predict(wanted)

    async def key(self, container: RunningContainer) -> str:
        return (await self.bench.spec(container)).start_key


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[PreflightRig]:
    async with Bench() as bench:
        yield PreflightRig(bench, tmp_path / "state")


MORE: Setting = {"max_num_seqs": 16}


async def test_chooses_surge_on_a_host_with_spare_capacity(rig: PreflightRig) -> None:
    vllm = await rig.bench.serving("--max-num-seqs", "4")

    preflight = await rig.ask(MORE, vllm)

    assert preflight.problem == ""
    assert preflight.strategy == "surge"
    assert "the host has" in preflight.why
    assert preflight.outage_s == 0.0


async def test_estimates_the_start_duration_from_the_running_server(rig: PreflightRig) -> None:
    vllm = await rig.bench.serving()

    preflight = await rig.ask(MORE, vllm)

    assert preflight.start_s is not None
    assert 0.2 <= preflight.start_s < 60.0  # the start time of the simulator is 0.2 s
    assert any("as measured for the running server" in note for note in preflight.notes)
    assert preflight.deadline_s is None  # an unmeasured start gives no deadline


async def test_chooses_swap_on_a_full_host_and_reports_the_outage(rig: PreflightRig) -> None:
    vllm = await rig.bench.serving(cpuset_cpus="0")
    key = await rig.key(vllm)
    rig.times.record(key, 40.0, None)
    rig.times.record_part(key, "stop", 5.0)

    preflight = await rig.ask(MORE, vllm)

    assert preflight.strategy == "swap"
    assert "pinned to its CPUs 0" in preflight.why
    assert (preflight.start_s, preflight.outage_s, preflight.deadline_s) == (40.0, 45.0, 120.0)
    assert "the outage: 5 s to stop, 40 s to start" in preflight.notes


async def test_reports_the_sleep_and_the_warm_up_of_a_swap(rig: PreflightRig) -> None:
    vllm = await rig.bench.serving(*SLEEPS, cpuset_cpus="0", env=DEV)
    rig.measure = ClaimedGpu().measure
    key = await rig.key(vllm)
    rig.times.record(key, 40.0, None)
    for part, seconds in {"sleep": 3.0, "wake": 2.0, "warm_up": 7.0}.items():
        rig.times.record_part(key, cast("SwapPart", part), seconds)

    preflight = await rig.ask(MORE, vllm)

    assert preflight.outage_s == 50.0
    assert "the outage: 3 s until it sleeps, 40 s to start, 7 s to warm up" in preflight.notes
    [back] = [note for note in preflight.notes if "sleeps meanwhile" in note]
    assert "a rollback wakes it in about 2 s, as measured: its 72.0 GiB of weights are in host memory" in back


async def test_says_why_a_server_cannot_sleep_in_a_swap(rig: PreflightRig) -> None:
    vllm = await rig.bench.serving(cpuset_cpus="0")

    preflight = await rig.ask(MORE, vllm)

    assert any("it cannot sleep meanwhile: it was started without" in note for note in preflight.notes)


async def test_does_not_swap_a_server_with_auto_remove(rig: PreflightRig) -> None:
    vllm = await rig.bench.run(cpuset_cpus="0", host={"AutoRemove": True})

    preflight = await rig.ask(MORE, vllm)

    assert "start it without --rm" in preflight.problem


async def test_reports_an_unmeasured_outage_as_assumed(rig: PreflightRig) -> None:
    vllm = await rig.bench.run("--sim-start-s", "600", cpuset_cpus="0")

    preflight = await rig.ask(MORE, vllm)

    assert preflight.start_s is None
    assert preflight.outage_s > 0
    assert "(assumed)" in preflight.notes[0]


async def test_chooses_replace_for_several_servers_on_a_full_host(rig: PreflightRig) -> None:
    servers = [await rig.bench.run(name=name, cpuset_cpus="0") for name in ("a", "b", "c")]

    preflight = await rig.ask(MORE, *servers)

    assert preflight.strategy == "replace"
    assert "2 of 3 servers keep serving" in preflight.why


async def test_a_memory_limit_beyond_the_host_leaves_no_capacity(rig: PreflightRig) -> None:
    vllm = await rig.bench.run()

    preflight = await rig.ask(MORE, vllm, over={"Memory": 100_000 * GIB})

    assert preflight.strategy == "swap"
    assert "(its limit)" in preflight.why


@pytest.mark.parametrize("wanted", ["surge", "replace"])
async def test_a_strategy_without_capacity_is_temporary(rig: PreflightRig, wanted: Strategy) -> None:
    vllm = await rig.bench.run(cpuset_cpus="0")

    preflight = await rig.ask(MORE, vllm, wanted=wanted)

    assert f'strategy = "{wanted}"' in preflight.problem
    assert not preflight.lasting


async def test_a_setting_with_too_many_gpus_is_a_permanent_problem(rig: PreflightRig) -> None:
    gpus = {"DeviceRequests": [{"Driver": "", "Count": 1, "DeviceIDs": None, "Capabilities": [["gpu"]]}]}
    vllm = await rig.bench.run()

    preflight = await rig.ask({"tensor_parallel_size": 4}, vllm, over=gpus)

    assert "needs 4 GPUs" in preflight.problem
    assert preflight.lasting


async def test_a_container_that_cannot_be_recreated_is_a_problem_with_the_fix(rig: PreflightRig) -> None:
    vllm = await rig.bench.run()
    blue = await rig.bench.inspect(vllm)
    blue["Image"] = "sha256:" + "0" * 64

    preflight = await rig.preflight(MORE, [blue])

    assert "pull or build it" in preflight.problem
    assert vllm.name in preflight.problem
    assert not preflight.lasting


async def test_flags_that_cannot_be_written_are_a_permanent_problem(rig: PreflightRig) -> None:
    vllm = await rig.bench.run()

    preflight = await rig.ask({"api_key": "sesame"}, vllm)

    assert "api_key" in preflight.problem
    assert preflight.lasting


async def with_package(rig: PreflightRig, folder: Path, *flags: str) -> Json:
    """A simulator container whose image contains a stub of vLLM. It knows `--max-num-seqs` only."""
    binds = [f"{package(folder)}:/package:ro", f"{folder}:/cache"]
    env = {"PYTHONPATH": f"/package:{REPOSITORY}"}
    blue = await rig.bench.inspect(await rig.bench.run(binds=binds, env=env))
    blue["Config"]["Cmd"] = list(flags)
    return blue


async def test_never_starts_a_command_that_vllm_rejects(rig: PreflightRig, tmp_path: Path) -> None:
    blue = await with_package(rig, tmp_path, "/package")

    preflight = await rig.preflight({"max_num_seqs": 0}, [blue])

    assert preflight.problem == "vLLM 9.9.9 rejects it: ValueError: max_num_seqs should be greater than 0"
    assert preflight.lasting
    assert await rig.bench.client.inspect(container_name(rig.site, "check")) is None


@pytest.mark.parametrize(
    "to", [{"max_num_seqs": 0}, {"max_num_seqs": 8, "nonsense": 3}], ids=["value", "usage"]
)
async def test_ignores_an_error_that_the_running_command_has_too(
    rig: PreflightRig, tmp_path: Path, to: Setting
) -> None:
    flags = ("/nowhere",) if "nonsense" not in to else ("/package", "--its-own-flag", "1")
    blue = await with_package(rig, tmp_path, *flags)

    preflight = await rig.preflight(to, [blue])

    assert preflight.problem == ""
    assert any("only the start itself tests the flags" in note for note in preflight.notes)


async def test_a_site_that_does_not_act_starts_no_container_for_the_check(rig: PreflightRig) -> None:
    vllm = await rig.bench.run()
    rig.site = replace(rig.site, acts=False)

    preflight = await rig.ask(MORE, vllm)

    assert await rig.bench.made_after(vllm, container_name(rig.site, "check")) == []
    assert (preflight.problem, preflight.unchecked) == ("", True)
    why = "only the start itself tests the flags: advise mode starts no container to check them with vLLM"
    assert why in preflight.notes


async def test_reports_a_cold_start_until_it_is_measured(rig: PreflightRig, tmp_path: Path) -> None:
    blue = await with_package(rig, tmp_path, "/package", "--max-num-seqs", "4")
    spec = Container.parse(blue)
    setting = spec.serve.setting

    cold = await rig.preflight(MORE, [blue])
    same = await rig.preflight({}, [blue])

    key = spec.start_key
    assert any("it compiles again" in note for note in cold.notes)
    assert any("resolved by it: max_num_seqs 4 → 16" in note for note in cold.notes)
    assert any("old and new servers share" in note for note in same.notes)
    assert rig.times.foreseen(key, {**setting, **MORE}) is False
    assert rig.times.foreseen(key, setting) is True


@pytest.mark.parametrize(
    ("lines", "is_logged"),
    [
        ([b"2026-11-21T16:00:01.123456789Z INFO:     Application startup complete."], True),
        ([b"2026-11-21T16:00:00Z loading", b"2026-11-21T16:00:01Z Uvicorn running on http://x"], True),
        ([b"\x01\x00\x00\x00\x00\x00\x00\x402026-11-21T16:00:01Z Application startup complete."], True),
        ([b"2026-11-21T16:00:00Z loading"], False),
        ([], False),
    ],
)
def test_reads_the_ready_time_from_the_log(lines: list[bytes], is_logged: bool) -> None:
    stamp = find_start(lines)

    assert (stamp is not None and stamp.second == 1) is is_logged


async def test_a_missing_log_gives_no_ready_time(rig: PreflightRig) -> None:
    started = container() | {"State": {"StartedAt": "2026-11-21T16:00:00Z"}}

    for blue in map(Container.parse, (started, container())):
        assert measured_start(await read_start_log(rig.bench.client, blue), blue) is None
