"""What only a container has to keep while its server sleeps, with a real Docker Engine."""

from dataclasses import replace

import pytest

from flettner.actuators.docker.engine import DockerEngine
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from tests.support.claimed_gpu import DEV, SLEEPS, ClaimedGpu
from tests.support.docker_engine_rig import EngineRig
from tests.support.docker_site import RunningContainer


async def sleepy(here: EngineRig, *flags: str) -> tuple[RunningContainer, DockerEngine, Server]:
    """An adopted server with sleep mode on a GPU that it claims to have."""
    container, engine, blue = await here.adopt(*SLEEPS, *flags, env=DEV, restart="always")
    engine.sleeper = replace(engine.sleeper, measure=ClaimedGpu().measure, free_within_s=0.5)
    return container, engine, blue


async def test_a_sleeping_container_is_not_started_again_by_docker(here: EngineRig) -> None:
    container, engine, blue = await sleepy(here)

    await engine.stop(blue)
    asleep = await here.policy(container.name)
    await engine.launch(blue, 60)

    assert asleep == "no"
    assert await here.policy(container.name) == "always"


async def test_the_log_of_a_server_that_does_not_wake_names_the_cause(here: EngineRig) -> None:
    _, engine, blue = await sleepy(here, "--sim-fault", "*:wake_fails")
    await engine.stop(blue)

    with pytest.raises(ActError) as failed:
        await engine.launch(blue, 60)

    assert any("out of memory" in line for line in failed.value.log)


async def test_a_sleeping_container_that_is_retired_is_removed(here: EngineRig) -> None:
    container, engine, blue = await sleepy(here)
    await engine.stop(blue)

    await engine.retire(blue)

    assert await here.bench.client.inspect(container.id) is None
    record = here.registry.load(blue.name)
    assert record is not None
    assert record.gone


async def test_a_server_without_sleep_mode_is_stopped(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()

    how = await engine.stop(blue)

    assert "it was started without --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1" in how
