"""What the preflight of a swap says of a process."""

from dataclasses import replace
from pathlib import Path

import pytest

from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.model import PreflightResult, Strategy
from flettner.vllm_facts.values import Setting
from tests.support.claimed_gpu import DEV, SLEEPS, ClaimedGpu
from tests.support.process_rig import SERVER, STUB, Bound, free_ports, site
from tests.support.real_vllm import REPOSITORY

SIMULATOR = ("-m", "flettner.simulator.server", "--model", "tiny", "--sim-start-s", "0.2")
MORE: Setting = {"max_num_seqs": 4}


async def ask(state_dir: Path, wanted: Strategy, *flags: str) -> PreflightResult:
    command = (STUB[0], *SIMULATOR, *flags) if flags else STUB
    options = ProcessPlugin(command=command, env=DEV, cwd=str(REPOSITORY), ports=free_ports())
    engine = options.bind(site(state_dir))
    engine.sleeper = replace(engine.sleeper, measure=ClaimedGpu().measure_process)
    server = await engine.launch(SERVER, 60)
    try:
        return await engine.preflight([server], MORE, wanted)
    finally:
        await engine.retire(server)


async def test_a_swap_says_how_long_the_outage_is_and_that_the_server_sleeps(tmp_path: Path) -> None:
    result = await ask(tmp_path, "swap", *SLEEPS)

    assert (result.problem, result.strategy) == ("", "swap")
    assert result.start_s is not None
    assert result.outage_s >= result.start_s + 10
    outage, back, *_ = result.notes
    assert "until it sleeps" in outage
    assert "chat-r1 sleeps meanwhile" in back
    assert "72.0 GiB of weights are in host memory" in back


async def test_a_swap_says_why_the_server_cannot_sleep(tmp_path: Path) -> None:
    result = await ask(tmp_path, "swap")

    assert result.strategy == "swap"
    assert any("it cannot sleep meanwhile: it was started without --enable" in note for note in result.notes)


async def test_several_servers_are_left_to_containers(tmp_path: Path) -> None:
    result = await ask(tmp_path, "replace")

    assert 'write "surge" or "swap" here' in result.problem


@pytest.mark.parametrize(
    ("wanted", "where"), [("surge", "beside the server in force this host has"), ("swap", "this host has")]
)
async def test_flags_that_ask_for_more_host_memory_than_there_is_are_refused(
    bound: Bound, wanted: Strategy, where: str
) -> None:
    """Where green allocates it the kernel ends processes, blue among them."""
    engine = bound()
    server = await engine.launch(SERVER, 60)

    asked = await engine.preflight([server], {**MORE, "kv_offloading_size": 16_000}, wanted)
    fits = await engine.preflight([server], {**MORE, "kv_offloading_size": 0.001}, wanted)

    assert asked.problem.startswith("kv_offloading_size = 16000 takes 16000.0 GiB of host memory")
    assert where in asked.problem
    assert ('"swap"' in asked.problem) is (wanted == "surge")
    assert fits.problem == ""
