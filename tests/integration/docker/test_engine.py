"""Adopting, cloning, stopping, restarting and retiring containers with a real Docker Engine."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flettner.actuators.docker.plugin import DockerPlugin
from flettner.actuators.docker.registry import container_name, server_labels
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.vllm_facts.values import Setting
from tests.support.docker_engine_rig import EngineRig

GREEN = Server(name="chat-r1", setting={})
COMPOSE = {"com.docker.compose.project": "llm", "com.docker.compose.service": "vllm"}


def like(blue: Server, name: str = "chat-r1", **setting: Any) -> Server:  # noqa: ANN401
    return Server(name=name, setting={**blue.setting, **setting}, like=blue.name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"containers": ()},
        {"containers": ("",)},
        {"containers": ("a", "a")},
        {"containers": ("a",), "lost_after": 0},
        {"containers": ("a",), "health_every_s": 0},
    ],
)
def test_rejects_meaningless_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"containers|at least"):
        DockerPlugin(**wrong)


@pytest.mark.smoke
async def test_adopts_a_running_container_with_its_setting(here: EngineRig) -> None:
    container, engine, blue = await here.adopt("--max-num-seqs", "2")

    assert list(await engine.problems()) == []
    setting: Setting = {"model": "tiny", "sim_start_s": 0.2, "max_num_seqs": 2}
    assert blue == Server(name=container.name, setting=setting, address=container.address, ours=False)
    assert await engine.busy(blue) == 0


async def test_reaches_a_container_without_a_published_port_at_its_own_address(here: EngineRig) -> None:
    await here.bench.run(port=None)

    [blue] = await here.engine().observe()

    assert blue.address.startswith("172.")
    assert blue.address.endswith(":8000")


@pytest.mark.smoke
async def test_a_launched_container_differs_in_the_flag_only(here: EngineRig) -> None:
    _, engine, blue = await here.adopt(memory=2**29, env={"HF_TOKEN": "hf_very_secret"})

    green = await engine.launch(like(blue, max_num_seqs=4), 60)

    assert green.setting == {**blue.setting, "max_num_seqs": 4}
    assert green.like == blue.name
    assert [line.partition(":")[0] for line in green.differs] == ["Config.Cmd max_num_seqs"]
    assert [server.name for server in await engine.observe()] == [green.name, blue.name]


async def test_the_promoted_container_inherits_the_restart_policy(here: EngineRig) -> None:
    container, engine, blue = await here.adopt(restart="always")
    green = await engine.launch(like(blue, max_num_seqs=4), 60)
    name = container_name(here.site, green.name)
    assert await here.policy(name) == "no"

    await engine.retire(blue)
    await engine.retire(blue)

    assert await here.policy(name) == "always"
    assert await here.bench.client.inspect(container.id) is None
    assert list(await engine.observe()) == [green]
    assert list(await here.engine(epoch=2).problems()) == []


async def test_recreates_an_adopted_container_from_its_record(here: EngineRig) -> None:
    container, engine, blue = await here.adopt(restart="always", env={"HF_TOKEN": "hf_very_secret"})
    await engine.retire(blue)
    [file] = (here.site.state_dir / "containers").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "hf_very_secret" in file.read_text()

    again = await engine.launch(like(blue), 60)

    spec = await here.bench.client.inspect(container_name(here.site, again.name))
    assert spec
    assert again.setting == blue.setting
    assert "HF_TOKEN=hf_very_secret" in spec.serve.env
    assert spec.restart_policy["Name"] == "always"
    assert container.name not in await here.bench.names()


async def test_only_stops_a_compose_container(here: EngineRig) -> None:
    container, engine, blue = await here.adopt(restart="unless-stopped", labels=COMPOSE)
    green = await engine.launch(like(blue), 60)

    await engine.retire(blue)

    inspect = await here.bench.inspect(container)
    assert inspect["State"]["Status"] == "exited"
    assert inspect["HostConfig"]["RestartPolicy"]["Name"] == "no"
    launched = await here.bench.client.inspect(container_name(here.site, green.name))
    assert launched
    assert not COMPOSE.keys() & launched.labels.keys()
    assert list(await engine.observe()) == [green]
    assert list(await engine.problems()) == []


async def test_a_rollback_leaves_the_restart_policy_on_blue(here: EngineRig) -> None:
    container, engine, blue = await here.adopt(restart="always")
    green = await engine.launch(like(blue, max_num_seqs=4), 60)

    await engine.retire(green)

    assert await here.policy(container.id) == "always"
    assert await here.left() == {}
    assert list(await engine.observe()) == [blue]


async def test_stops_and_starts_an_adopted_container_unchanged(here: EngineRig) -> None:
    container, engine, blue = await here.adopt(restart="always")

    await engine.stop(blue)
    stopped = await here.bench.inspect(container)
    again = await here.engine(epoch=2).launch(blue, 60)

    assert stopped["State"]["Status"] == "exited"
    assert stopped["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert again == blue
    assert await here.policy(container.id) == "always"


async def test_leaves_a_container_stopped_that_does_not_restart(here: EngineRig) -> None:
    container, engine, blue = await here.adopt(restart="always")
    await engine.stop(blue)
    host, _, port = container.address.partition(":")

    with socket.create_server((host, int(port))), pytest.raises(ActError) as failure:
        await engine.launch(blue, 60)

    assert "another process listens on that port" in failure.value.why
    assert await here.policy(container.id) == "no"
    assert list(await engine.observe()) == []
    assert await engine.launch(blue, 60) == blue


async def test_does_not_stop_a_container_with_auto_remove(here: EngineRig) -> None:
    _, engine, blue = await here.adopt(host={"AutoRemove": True})

    with pytest.raises(ActError, match="--rm"):
        await engine.stop(blue)

    assert list(await engine.observe()) == [blue]
    assert await engine.busy(blue) == 0


async def test_retires_a_paused_container(here: EngineRig) -> None:
    container, engine, blue = await here.adopt()
    await here.bench.engine(lambda api: api.pause(container.id))

    await engine.stop(blue)

    assert (await here.bench.inspect(container))["State"]["Status"] == "exited"


async def test_recognises_renamed_containers(here: EngineRig) -> None:
    container, engine, blue = await here.adopt()
    green = await engine.launch(like(blue), 60)
    await here.bench.rename(container.id, "other")
    await here.bench.rename(container_name(here.site, green.name), "another")

    assert list(await engine.observe()) == [green, blue]
    assert await engine.launch(green, 60) == green
    await engine.retire(green)
    await engine.retire(blue)
    assert await here.bench.names() == set()


async def test_adopts_a_recreated_container_of_the_same_name(here: EngineRig) -> None:
    container, engine, _ = await here.adopt()
    await here.bench.client.remove(container.id)
    await here.bench.serving("--max-num-seqs", "7")

    [blue] = await engine.observe()

    assert blue.setting["max_num_seqs"] == 7
    record = here.registry.load(blue.name)
    assert record
    assert record.id != container.id


async def test_removes_only_its_own_leftover_containers(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()
    stopped = await engine.launch(like(blue, "chat-r1"), 60)
    await engine.stop(stopped)
    image = await here.bench.simulator()
    for name, site in (("chat-r2", here.site), ("chat-r3", replace(here.site, target="other"))):
        labels = server_labels(site, Server(name=name, setting={}))
        await here.bench.client.create({"Image": image.tag, "Labels": labels}, here.bench.prefix + name)
    bystander = await here.bench.run("--no-such-flag", name="bystander")
    await here.bench.client.wait(bystander.id)

    green = await engine.launch(like(blue, "chat-r4"), 60)

    left = {container_name(here.site, "chat-r1"): "exited", container_name(here.site, "chat-r4"): "running"}
    assert await here.left() == left
    assert {bystander.name, f"{here.bench.prefix}chat-r3"} <= await here.bench.names() | await labelled(here)
    await engine.retire(green)
    await here.bench.client.remove(f"{here.bench.prefix}chat-r3")


async def labelled(here: EngineRig) -> set[str]:
    return await here.bench.names({"flettner.target": "other"})


async def test_recreates_a_container_that_was_never_started(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()
    image = await here.bench.simulator()
    labels = server_labels(here.site, GREEN)
    await here.bench.client.create(
        {"Image": image.tag, "Labels": labels}, container_name(here.site, GREEN.name)
    )
    assert list(await engine.observe()) == [blue]

    green = await engine.launch(like(blue), 60)

    assert green.setting == blue.setting


@pytest.mark.parametrize("seen", [True, False])
async def test_a_cancelled_launch_keeps_only_containers_seen_by_a_newer_daemon(
    here: EngineRig, *, seen: bool
) -> None:
    _, engine, blue = await here.adopt()
    older = asyncio.create_task(engine.launch(like(blue, sim_start_s=600), 600))
    while "running" not in (await here.left()).values():
        await asyncio.sleep(0.1)
    newer = here.engine(epoch=2)
    expected = await newer.observe() if seen else [blue]

    older.cancel()
    await asyncio.wait([older])

    assert len(expected) == 1 + seen
    assert list(await newer.observe()) == list(expected)
    for server in expected:
        if server.ours:
            await newer.retire(server)


async def test_two_daemons_on_one_host_see_only_their_own_containers(here: EngineRig, tmp_path: Path) -> None:
    _, engine, blue = await here.adopt()
    await engine.launch(like(blue), 60)

    other = here.engine(state_dir=tmp_path / "other")

    assert list(await other.observe()) == [blue]


async def test_a_missing_server_to_adopt_is_a_problem(here: EngineRig) -> None:
    engine = here.engine()

    [problem] = await engine.problems()

    assert "there is no such container" in problem
    assert list(await engine.observe()) == []
    with pytest.raises(ActError, match="start the first one yourself"):
        await engine.launch(GREEN, 60)


async def test_a_missing_engine_is_a_problem(here: EngineRig, tmp_path: Path) -> None:
    [problem] = await here.engine("vllm", host=f"unix://{tmp_path}/none.sock").problems()

    assert "is it running" in problem


async def test_an_unavailable_log_is_an_error_with_its_cause(here: EngineRig, tmp_path: Path) -> None:
    engine = here.engine("vllm", host=f"unix://{tmp_path}/none.sock")

    with pytest.raises(ActError, match="is it running"):
        await engine.log(GREEN)


async def test_several_containers_serve_one_target(here: EngineRig) -> None:
    names = [(await here.bench.serving(name=name)).name for name in ("b", "a")]
    engine = here.engine(*names)

    servers = await engine.observe()
    await engine.stop(servers[0])
    green = await engine.launch(like(servers[0]), 60)
    await engine.retire(servers[0])

    assert [server.name for server in servers] == names
    assert green.like == names[0]
    assert list(await engine.observe()) == [green, servers[1]]


async def test_reports_the_differences_after_a_daemon_restart(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()
    green = await engine.launch(like(blue, max_num_seqs=4), 60)
    await engine.retire(blue)

    again = await here.engine(epoch=2).launch(like(blue, max_num_seqs=4), 60)

    assert again.differs == green.differs
    assert again.like == blue.name


async def test_adopts_a_container_of_another_site(here: EngineRig, tmp_path: Path) -> None:
    _, engine, blue = await here.adopt()
    green = await engine.launch(like(blue), 60)
    name = container_name(here.site, green.name)

    other = here.engine(name, state_dir=tmp_path / "other")

    assert list(await other.observe()) == [replace(green, name=name, ours=False)]


async def test_remembers_the_start_duration(here: EngineRig) -> None:
    _, engine, blue = await here.adopt()
    await engine.launch(like(blue), 60)

    preflight = await engine.preflight([blue], blue.setting, "auto")

    assert preflight.start_s is not None
    assert preflight.start_s < 60


async def test_sends_the_required_api_key(here: EngineRig) -> None:
    _, engine, blue = await here.adopt("--api-key", "very-secret-key")

    await engine.warm_up(blue, 2, 60)

    assert "api_key" not in blue.setting


async def test_a_launched_container_names_its_image_as_the_original_does(here: EngineRig) -> None:
    container, engine, blue = await here.adopt()
    before = await here.bench.inspect(container)

    green = await here.bench.client.inspect(
        container_name(here.site, (await engine.launch(like(blue), 60)).name)
    )

    assert green
    assert (green.image, green.image_tag) == (before["Image"], before["Config"]["Image"])
    assert ":" in green.image_tag
    assert not green.image_tag.startswith("sha256:")


async def test_a_launched_container_keeps_the_image_of_a_tag_that_has_moved(here: EngineRig) -> None:
    image = await here.bench.simulator()
    repository = f"{here.bench.prefix}vllm".lower()
    await here.bench.engine(lambda api: api.tag(image.tag, repository, "v1"))
    mine = replace(image, tag=f"{repository}:v1")
    try:
        container, engine, blue = await here.adopt(image=mine)
        other = await here.bench.engine(lambda api: api.commit(container.id, repository, "v1"))

        await engine.launch(like(blue), 60)
        green = await here.bench.client.inspect(container_name(here.site, GREEN.name))
    finally:
        await here.bench.tear_down()
        await here.tear_down()
        await here.bench.engine(lambda api: api.remove_image(mine.tag, force=True))

    assert green
    assert green.image == green.image_tag == (await here.bench.client.image(image.tag) or {})["Id"]
    assert green.image != other["Id"]
