"""The end of a promotion: the operator's Deployment takes over, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flettner.actuators.kubernetes.engine import KubernetesEngine
from flettner.actuators.kubernetes.watch import Watch
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.errors import AwayError, ForbiddenError
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import BLUE, FLAGS, GREEN, bind, names, serve, watched, with_green
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace

pytestmark = pytest.mark.timeout(180)

NEXT = Server(name="chat-r2", setting={**GREEN.setting, "max_num_seqs": 32}, like="chat-r1")


async def handing_over(here: Namespace, tmp_path: Path) -> KubernetesEngine:
    await serve(here)
    return await with_green(here, tmp_path)


async def args(here: Namespace) -> list[str]:
    document = await here.get("deployments", "vllm")
    return list(document["spec"]["template"]["spec"]["containers"][0]["args"])


async def is_handed_over(here: Namespace, engine: KubernetesEngine, server: str = "chat-r1") -> None:
    document = await here.available("vllm")
    assert await names(here, "deployments") == {"vllm"}
    assert document["spec"]["replicas"] == 1
    assert [observed.name for observed in await engine.observe()] == [server]
    assert [name for name in await names(here, "services") if "vllm" in name] == []


@pytest.mark.parametrize("late", [False, True], ids=["seen at once", "seen when it is over"])
async def test_the_old_server_is_not_said_to_be_stopped_by_a_third_party(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    over = asyncio.Event()

    async def follow_late(watch: Watch, changes: AsyncIterator[None]) -> None:
        async for _ in changes:
            await over.wait()
            watch._changed.set()

    if late:
        monkeypatch.setattr(Watch, "_follow", follow_late)
    engine = await handing_over(here, tmp_path)
    [blue] = [server for server in await engine.observe() if server.name == "vllm"]
    watching, lost = watched(engine, blue)

    await engine.retire(blue)
    over.set()
    async with asyncio.timeout(60):
        await watching

    assert [loss.why for loss in lost] == ["vllm was scaled to 0 by flettner"]
    await is_handed_over(here, engine)


async def test_an_evicted_pod_that_lingers_delays_nothing(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    await here.node.evict(here.node.pod("vllm"))
    await here.available("vllm")
    engine = await with_green(here, tmp_path)

    async with asyncio.timeout(30):
        await engine.retire(BLUE)

    await is_handed_over(here, engine)
    assert "16" in await args(here)


async def test_a_right_that_a_starting_api_server_does_not_know_yet_is_asked_for_again(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await handing_over(here, tmp_path)
    real, refusals = KubernetesClient.patch, iter(range(2))

    async def forbid_twice(*given: Any) -> Json:  # noqa: ANN401
        if next(refusals, None) is not None:
            raise ForbiddenError("change the Deployment vllm: the API server forbids it")
        return await real(*given)

    monkeypatch.setattr(KubernetesClient, "patch", forbid_twice)
    await engine.retire(BLUE)

    assert next(refusals, None) is None
    await is_handed_over(here, engine)


@pytest.mark.parametrize("done", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("write", range(1, 7))
async def test_a_handover_that_ends_at_any_write_goes_on(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, write: int, done: bool
) -> None:
    engine = await handing_over(here, tmp_path)
    writes = 0

    def ending(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any) -> Any:  # noqa: ANN401
            nonlocal writes
            writes += 1
            if writes == write and not done:
                raise asyncio.CancelledError
            answer = await real(*given)
            if writes == write:
                raise asyncio.CancelledError
            return answer

        return call

    with monkeypatch.context() as patched:
        for name in ("patch", "delete"):
            patched.setattr(KubernetesClient, name, ending(getattr(KubernetesClient, name)))
        with pytest.raises(asyncio.CancelledError):
            await engine.retire(BLUE)
    later = await bind(here, tmp_path, epoch=2)
    assert "chat-r1" in [server.name for server in await later.observe()]
    await later.retire(BLUE)

    await is_handed_over(here, later)
    assert "16" in await args(here)
    notes = (await here.get("deployments", "vllm"))["metadata"]["annotations"]
    assert notes["flettner.dev/change"] == '{"max_num_seqs": [8, 16]}'


async def test_an_absent_api_server_and_other_writers_are_no_fault_of_the_deployment(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await handing_over(here, tmp_path)
    patch, find = KubernetesClient.patch, KubernetesClient.find
    finds, others = 0, 0

    async def blinking(*given: Any) -> Any:  # noqa: ANN401
        nonlocal finds
        finds += 1
        if finds > 4 and finds % 3 == 0:
            raise AwayError("429")
        return await find(*given)

    async def contested(client: KubernetesClient, kind: Any, name: str, change: Any) -> Json:  # noqa: ANN401
        nonlocal others
        others += 1
        if others % 2 and name == "vllm":
            await here.api.patch(here.path("deployments", name), {"metadata": {"labels": {"n": str(others)}}})
        return await patch(client, kind, name, change)

    monkeypatch.setattr("flettner.clients.kubernetes.client._RETRY_S", 0.1)
    monkeypatch.setattr(KubernetesClient, "patch", contested)
    monkeypatch.setattr(KubernetesClient, "find", blinking)
    await engine.retire(BLUE)
    monkeypatch.undo()

    assert others > 3
    await is_handed_over(here, engine)


async def edit(here: Namespace, change: Json) -> None:
    await here.api.patch(here.path("deployments", "vllm"), change)


async def test_green_serves_until_a_later_rollout_can_hand_over(here: Namespace, tmp_path: Path) -> None:
    engine = await handing_over(here, tmp_path)
    missing = container(*FLAGS, image="vllm/vllm-openai:missing")
    await edit(here, {"spec": {"template": {"spec": {"containers": [missing]}}}})

    await engine.retire(BLUE)
    later = await bind(here, tmp_path, epoch=2)
    [green] = await later.observe()

    assert green.name == "chat-r1"
    assert (await here.get("deployments", "vllm"))["spec"]["replicas"] == 0
    await edit(here, {"spec": {"template": {"spec": {"containers": [container(*FLAGS)]}}}})
    await later.launch(NEXT, 60)
    await later.retire(green)
    await is_handed_over(here, later, "chat-r2")
    assert "32" in await args(here)


@pytest.mark.parametrize("edited", ["flags", "paused", "deleted"])
async def test_a_person_who_edits_the_deployment_meanwhile_does_not_get_the_traffic(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    engine = await handing_over(here, tmp_path)

    async def person(*_: object, **__: object) -> None:
        template = {"spec": {"containers": [container(*FLAGS, "--max-model-len", "512")]}}
        if edited == "flags":
            await edit(here, {"spec": {"template": template}})

    monkeypatch.setattr("flettner.actuators.vllm.probe.OpenAiProbe.warm_up", person)
    if edited == "paused":
        await edit(here, {"spec": {"paused": True}})
    if edited == "deleted":
        await here.api.delete(here.path("deployments", "vllm"))
    await engine.retire(BLUE)

    assert [server.name for server in await engine.observe()] == ["chat-r1"]
    assert [name for name in await names(here, "deployments") if name != "vllm"] != []
    assert [name for name in await names(here, "services") if "vllm" in name] == []
    if edited != "deleted":
        assert (await here.get("deployments", "vllm"))["spec"]["replicas"] == 0


async def test_a_promoted_server_keeps_its_name_without_its_service(here: Namespace, tmp_path: Path) -> None:
    engine = await handing_over(here, tmp_path)
    await engine.retire(BLUE)
    [service] = [name for name in await names(here, "services") if name.startswith("flettner")]

    await here.api.delete(here.path("services", service))
    [promoted] = await engine.observe()

    assert (promoted.name, promoted.setting["max_num_seqs"]) == ("chat-r1", 16)
    assert service in await names(here, "services")


async def test_flags_that_the_owner_changes_end_the_watch_without_a_loss(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)
    [before] = await engine.observe()
    watch, lost = watched(engine, before)
    await asyncio.sleep(1)

    result = await engine.preflight([before], {**before.setting, "max_num_seqs": 16}, "auto")
    await here.api.call(
        "PATCH",
        here.path("deployments", "vllm"),
        yaml.safe_load(result.patch),
        kind="application/json-patch+json",
    )
    async with asyncio.timeout(60):
        await watch
    [after] = await engine.observe()

    assert [loss for loss in lost if loss.gone] == []
    assert (before.setting["max_num_seqs"], after.setting["max_num_seqs"]) == (8, 16)


async def test_a_service_that_a_third_party_deletes_is_there_again_soon(
    here: Namespace, tmp_path: Path
) -> None:
    engine = await handing_over(here, tmp_path)
    watches = [watched(engine, server)[0] for server in await engine.observe()]
    services = {service for service in await names(here, "services") if service.startswith("flettner")}

    for name in services:
        await here.api.delete(here.path("services", name))

    async def restored() -> Json:
        return {"names": sorted(services)} if services <= await names(here, "services") else {}

    await here.eventually(restored)
    for watch in watches:
        watch.cancel()
    assert len(services) == 2


async def test_green_does_not_end_while_its_restored_service_leads_to_it(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third party deletes the Service when it already leads to the operator's Deployment."""
    engine = await handing_over(here, tmp_path)
    [green, _] = await engine.observe()
    watching, _ = watched(engine, green)
    [name] = [service for service in await names(here, "services") if service.startswith("flettner-chat-r1")]
    monkeypatch.setattr("flettner.actuators.kubernetes.scale._DNS_S", 4.0)
    retiring = asyncio.create_task(engine.retire(BLUE))
    await here.until(
        "services",
        name,
        lambda document: document["metadata"]["annotations"]["flettner.dev/deployment"] == "vllm",
    )

    await here.api.delete(here.path("services", name))
    with pytest.raises(ActError, match="was deleted by a third party: the handover is repeated"):
        await retiring
    left = await names(here, "deployments")
    moved = await engine.retire(BLUE)

    assert left == {"vllm", name}
    assert moved == "chat-r1"
    await is_handed_over(here, engine)
    watching.cancel()


async def test_a_promoted_server_belongs_to_the_owner_of_its_deployment(
    here: Namespace, tmp_path: Path
) -> None:
    engine = await handing_over(here, tmp_path)

    moved = await engine.retire(BLUE)
    [server] = await engine.observe()

    assert (moved, server.name, server.ours) == ("chat-r1", "chat-r1", False)


async def test_flags_of_a_mounted_config_file_change_too(here: Namespace, tmp_path: Path) -> None:
    await here.create("configmaps", {"metadata": {"name": "c"}, "data": {"c.yaml": "max-num-seqs: 8\n"}})
    mounts = [{"name": "c", "mountPath": "/c"}]
    server = container("tiny", "--sim-start-s", "0.2", "--config", "/c/c.yaml", volumeMounts=mounts)
    volumes = [{"name": "c", "configMap": {"name": "c"}}]
    await here.run(deployment("vllm", server, volumes=volumes))
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    await engine.launch(replace(GREEN, setting={**blue.setting, "max_num_seqs": 16}), 60)
    await engine.retire(BLUE)

    await is_handed_over(here, engine)
    [promoted] = await engine.observe()
    assert (blue.setting["max_num_seqs"], promoted.setting["max_num_seqs"]) == (8, 16)


async def test_a_deployment_that_selects_by_expressions_is_an_obstacle_and_finds_its_own_pods(
    here: Namespace, tmp_path: Path
) -> None:
    body = deployment("vllm", container(*FLAGS))
    body["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["vllm"]}]}
    await here.create("deployments", body)
    await here.run(deployment("other", container(*FLAGS)))
    await here.available("vllm")
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    [problem] = await engine.problems()
    await engine.stop(blue)

    assert "matchExpressions" in problem
    [service] = [
        document
        for document in await here.list("services")
        if document["metadata"]["name"].startswith("flettner")
    ]
    assert service["spec"]["selector"] == {"app": "vllm"}


async def test_a_long_name_with_dots_gets_objects_with_valid_names(here: Namespace, tmp_path: Path) -> None:
    name = f"vllm.{'x' * 60}.v1"
    body = deployment("vllm", container(*FLAGS))
    body["metadata"]["name"] = name
    await here.run(body)
    engine = await bind(here, tmp_path, names=(name,))
    [blue] = await engine.observe()

    green = await engine.launch(Server(name=f"{'t' * 63}-r1", setting=GREEN.setting, like=name), 60)
    await engine.retire(blue)

    assert blue.name == name
    assert [server.name for server in await engine.observe()] == [green.name]
    assert await names(here, "deployments") == {name}


async def test_advise_mode_follows_the_pods_that_replace_others(here: Namespace, tmp_path: Path) -> None:
    """Each pod has an address, as there is no Service of flettner's then."""
    await serve(here, replicas=2)
    engine = await bind(here, tmp_path, acts=False)
    [before] = await engine.observe()
    watch, lost = watched(engine, before)

    await edit(here, {"spec": {"template": {"metadata": {"annotations": {"restarted": "now"}}}}})
    async with asyncio.timeout(30):
        await watch
    await here.available("vllm")
    [after] = await engine.observe()

    assert [len(server.address.split(", ")) for server in (before, after)] == [2, 2]
    assert not set(before.address.split(", ")) & set(after.address.split(", "))
    assert lost == []


async def test_a_drained_node_is_not_counted_against_green(here: Namespace, tmp_path: Path) -> None:
    engine = await handing_over(here, tmp_path)
    green = (await engine.observe())[0]
    watch, lost = watched(engine, green)
    await asyncio.sleep(1)

    await here.api.delete(here.path("pods", here.node.pod("flettner").name))
    await asyncio.sleep(8)
    watch.cancel()

    assert [loss for loss in lost if loss.gone or not loss.external] == []


async def test_a_deployment_that_a_person_scaled_to_0_is_started_again_with_as_many_pods_as_it_had(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here, replicas=2)
    engine = await with_green(here, tmp_path)

    await edit(here, {"spec": {"replicas": 0}})
    await engine.launch(replace(BLUE, replicas=2), 60)

    assert (await here.get("deployments", "vllm"))["spec"]["replicas"] == 2
