"""A container is upgraded to another image, and rolled back, with the real Docker Engine."""

import re
from dataclasses import replace

import docker
import pytest

from flettner.actuators.docker.registry import Registry
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from tests.support.docker_engine_rig import EngineRig
from tests.support.docker_images import simulator_image

pytestmark = pytest.mark.smoke


async def another_image(here: EngineRig, env: str) -> str:
    """Return the tag of an image like the simulator's with one more variable."""
    repository, tag = "flettner-test/upgraded", re.sub(r"\W", "-", env)

    def build(api: docker.APIClient) -> None:
        made = api.create_container(simulator_image(api).tag, command=["none"])
        api.commit(made["Id"], repository=repository, tag=tag, changes=[f"ENV {env}"])
        api.remove_container(made["Id"])

    await here.bench.engine(build)
    return f"{repository}:{tag}"


async def test_green_runs_the_new_image_and_a_restart_of_it_does_too(here: EngineRig) -> None:
    container, engine, blue = await here.adopt("--max-num-seqs", "4", env={"OWN": "1"})
    tag = await another_image(here, "VLLM_BUILD=0.33")

    result = await engine.preflight([blue], blue.setting, "surge", {"image": tag, "env.ADDED": "2"})
    (_, pinned) = result.resolved["image"]
    start = {"image": pinned, "env.ADDED": "2"}
    green = await engine.launch(Server(name="chat-r1", setting=blue.setting, like=blue.name, start=start), 60)
    again = await engine.launch(
        Server(name="chat-r2", setting=green.setting, like=green.name, start=start), 60
    )

    assert result.problem == ""
    assert str(pinned).startswith("sha256:")
    assert any("is used, as it could not be pulled" in note for note in result.notes)
    old = await here.bench.spec(container)
    registry = Registry(client=here.bench.client, site=here.site, names=())
    containers = await registry.find()
    for server in (green, again):
        made = containers[server.name]
        assert made.image == pinned
        assert (made.env["VLLM_BUILD"], made.env["OWN"], made.env["ADDED"]) == ("0.33", "1", "2")
        assert dict(server.setting) == dict(blue.setting)
    assert old.image != pinned
    assert "VLLM_BUILD" not in old.env
    assert any(line.startswith("Image: ") for line in green.differs)


async def test_an_image_that_cannot_be_pulled_costs_nothing(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()

    result = await engine.preflight([blue], blue.setting, "surge", {"image": "localhost:1/nobody/vllm:0.33"})

    assert "localhost:1/nobody/vllm:0.33 could not be pulled, and nothing was started" in result.problem
    assert [server.name for server in await engine.observe()] == [blue.name]


async def test_a_program_of_a_container_is_not_replaced(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()

    result = await engine.preflight([blue], blue.setting, "surge", {"command": "/opt/vllm/bin/vllm"})

    assert result.problem == "command= is of processes: a container is upgraded by image="


async def test_advise_mode_pulls_nothing(here: EngineRig) -> None:
    await here.adopt()
    here.site = replace(here.site, acts=False)
    engine = here.engine()
    [blue] = await engine.observe()

    result = await engine.preflight([blue], blue.setting, "surge", {"image": "any:1"})

    assert "advise mode pulls no image" in result.problem


async def test_an_image_that_does_not_start_leaves_the_old_server(here: EngineRig) -> None:
    container, engine, blue = await here.adopt()
    tag = await another_image(here, "PATH=/nowhere")

    with pytest.raises(ActError):
        await engine.launch(
            Server(name="chat-r1", setting=blue.setting, like=blue.name, start={"image": tag}), 30
        )

    assert (await here.bench.spec(container)).state.running
    assert [server.name for server in await engine.observe()] == [blue.name]


async def test_an_image_in_use_is_not_pruned_and_one_that_is_gone_before_the_start_costs_nothing(
    here: EngineRig,
) -> None:
    container, engine, blue = await here.adopt()
    tag = await another_image(here, "VLLM_BUILD=pruned")
    result = await engine.preflight([blue], blue.setting, "surge", {"image": tag})
    (old, new) = result.resolved["image"]
    green = Server(name="chat-r1", setting=blue.setting, like=blue.name, start={"image": new})

    with pytest.raises(docker.errors.APIError, match="conflict"):  # what `docker image prune` spares, too
        await here.bench.engine(lambda api: api.remove_image(api.inspect_container(container.name)["Image"]))
    await here.bench.engine(lambda api: api.remove_image(tag))
    with pytest.raises(ActError, match="could not be pulled, and nothing was started"):
        await engine.launch(green, 30)

    assert (await here.bench.spec(container)).state.running
    assert old != new
    assert [server.name for server in await engine.observe()] == [blue.name]
