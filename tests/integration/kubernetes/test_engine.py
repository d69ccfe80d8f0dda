"""The engine's writes and what it says when a start fails, on a real API server."""

from pathlib import Path

import pytest
import yaml

from flettner.actuators.kubernetes.labels import object_name
from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.helm import manifests, of_kind
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import FLAGS, GREEN, ROLE, bind, names, serve
from tests.support.kubernetes.manifests import container, controlled_by, deployment, rule
from tests.support.kubernetes.memory.patches import apply
from tests.support.kubernetes.namespace import Namespace

pytestmark = [pytest.mark.timeout(180), pytest.mark.any_cluster]

READ = ["get", "list", "watch"]


async def test_a_green_starts_with_the_documented_rights_and_gets_no_traffic_of_the_service(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)
    spec = {"selector": {"app": "vllm"}, "ports": [{"port": 80, "targetPort": 8000}]}
    await here.create("services", {"metadata": {"name": "vllm"}, "spec": spec})
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    green = await engine.launch(GREEN, 60)

    assert await engine.problems() == []
    assert (blue.name, blue.ours, green.like) == ("vllm", False, "vllm")
    service = object_name(Site(target="chat", state_dir=tmp_path, epoch=1), "chat-r1")
    assert green.address == f"{service}.{here.name}.svc:8000"
    endpoints = await here.get("endpoints", "vllm")
    assert [len(subset["addresses"]) for subset in endpoints["subsets"]] == [1]


async def test_advise_mode_writes_nothing(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path, *of_kind("Role", manifests())["rules"], acts=False)
    before = await names(here, "services")

    [blue] = await engine.observe()
    result = await engine.preflight([blue], GREEN.setting, "auto")

    assert blue.address.endswith(":8000")
    assert not result.problem
    assert await names(here, "services") == before


async def test_init_finds_the_deployments_that_run_vllm(
    here: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve(here)
    await here.create(
        "deployments", deployment("web", container(image="nginx", command=["sleep", "60"]), replicas=0)
    )
    monkeypatch.setenv("KUBECONFIG", str(await here.user("reader", *ROLE)))

    [(server, options)] = (await KubernetesPlugin.find_unmanaged_servers()).servers

    assert (server.name, server.setting["max_num_seqs"]) == ("vllm", 8)
    assert options == {"deployments": ["vllm"], "namespace": here.name}


async def test_a_missing_right_is_named(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path, *ROLE[1:], rule(["apps"], ["deployments"], READ))

    with pytest.raises(ActError, match=r'forbids it: .*cannot create resource "deployments".*Role'):
        await engine.launch(GREEN, 60)


async def test_no_rights_at_all_are_a_problem_and_no_crash(here: Namespace, tmp_path: Path) -> None:
    engine = await bind(here, tmp_path, rule([""], ["secrets"], ["get"]))

    [problem] = await engine.problems()

    assert "forbids it" in problem


@pytest.mark.parametrize(
    ("of_green", "says"),
    [
        ({"image": "vllm/vllm-openai:missing"}, "cannot be pulled"),
        ({"args": ["tiny", "--no-such-flag"]}, "exited with code 2"),
        ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]}, "none"),
    ],
    ids=["image", "flag", "config map"],
)
async def test_a_failed_start_names_its_cause_and_leaves_nothing(
    here: Namespace, tmp_path: Path, of_green: dict[str, object], says: str
) -> None:
    pattern = deployment("vllm", container(*FLAGS) | of_green, replicas=0)
    await here.create("deployments", pattern)
    engine = await bind(here, tmp_path)

    with pytest.raises(ActError) as failure:
        await engine.launch(Server(name="chat-r1", setting={}), 60)

    assert says in failure.value.why
    assert await names(here, "deployments") == {"vllm"}
    assert not [name for name in await names(here, "services") if name.startswith("flettner")]


async def test_a_green_without_a_free_gpu_is_refused_with_the_schedulers_numbers(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flettner.actuators.kubernetes.start._NO_NODE_S", 1.0)
    await serve(here, gpus=2)
    engine = await bind(here, tmp_path)

    with pytest.raises(ActError, match=r"2 GPUs: 0/\d nodes are available.*swap") as failure:
        await engine.launch(GREEN, 60)

    assert failure.value.external
    assert await names(here, "deployments") == {"vllm"}


async def test_a_swap_is_an_outage_and_replace_needs_a_second_pod(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    swap = await engine.preflight([blue], GREEN.setting, "swap")
    replace = await engine.preflight([blue], GREEN.setting, "replace")

    assert (swap.problem, swap.strategy) == ("", "swap")
    assert swap.outage_s > 0
    assert 'write "swap"' in replace.problem


async def test_flags_of_a_rolling_update_that_finds_no_room_are_not_in_force(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here, replicas=2, gpus=1)
    await (await bind(here, tmp_path)).observe()
    newer = container(*FLAGS[:-1], "16", gpus=1)
    await here.api.patch(
        here.path("deployments", "vllm"), {"spec": {"template": {"spec": {"containers": [newer]}}}}
    )

    async def updating() -> Json:
        document = await here.get("deployments", "vllm")
        return document if document["status"].get("updatedReplicas") == 1 else {}

    await here.eventually(updating)
    engine = await bind(here, tmp_path, epoch=2)
    [blue] = await engine.observe()
    result = await engine.preflight([blue], GREEN.setting, "auto")

    assert blue.setting["max_num_seqs"] == 8
    assert "2 of its pods have older flags: its rolling update is not over" in result.problem


@pytest.mark.parametrize(
    ("marks", "owner"),
    [
        ({"annotations": {"argocd.argoproj.io/tracking-id": "chat:apps/Deployment:chat/vllm"}}, "Argo CD"),
        (
            {"ownerReferences": [controlled_by("serving.kserve.io/v1beta1", "InferenceService", "chat")]},
            "InferenceService chat",
        ),
    ],
    ids=["GitOps", "KServe"],
)
async def test_a_deployment_that_a_controller_writes_is_not_fought_over(
    here: Namespace, tmp_path: Path, marks: Json, owner: str
) -> None:
    body = deployment("vllm", container(*FLAGS))
    body["metadata"] |= marks
    await here.run(body)
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    result = await engine.preflight([blue], GREEN.setting, "auto")

    assert (result.problem, result.owner) == ("", owner)
    assert f"{owner} writes the Deployment vllm and would revert a change" in result.notes[0]
    merged = apply(body, yaml.safe_load(result.patch))
    assert merged["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "16"
