"""StatefulSets as servers: green is a Deployment, and the promoted flags go into the StatefulSet."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flettner.actuators.kubernetes.engine import KubernetesEngine
from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from flettner.agent.domain.model import Server
from flettner.simulator.traffic import Load
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import BLUE, FLAGS, GREEN, ROLE, bind, names, with_green
from tests.support.kubernetes.manifests import claim, container, controlled_by, statefulset
from tests.support.kubernetes.memory.patches import apply
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import site_of
from tests.support.rig import lost, until

pytestmark = pytest.mark.timeout(180)

CACHE = {"name": "cache", "mountPath": "/root/.cache/huggingface"}


async def serve(here: Namespace, **spec: Any) -> None:  # noqa: ANN401 - of the StatefulSet
    """A StatefulSet that keeps downloads on a claim of each pod."""
    server = container(*FLAGS, volumeMounts=[CACHE])
    await here.run(statefulset("vllm", server, claims=[claim("cache")], **spec))


async def handing_over(here: Namespace, tmp_path: Path, **spec: Any) -> KubernetesEngine:  # noqa: ANN401
    await serve(here, **spec)
    return await with_green(here, tmp_path, kind="statefulsets")


async def args_of_pods(here: Namespace) -> dict[str, str]:
    """The last word of each pod's command, by the pod's name."""
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["args"][-1] for pod in await here.list("pods")
    }


async def test_green_is_a_deployment_whose_pods_have_claims_of_their_own(
    here: Namespace, tmp_path: Path
) -> None:
    engine = await handing_over(here, tmp_path)
    [green] = await here.list("deployments")
    claims = await names(here, "persistentvolumeclaims")
    [cache] = [volume for volume in green["spec"]["template"]["spec"]["volumes"] if volume["name"] == "cache"]

    assert await engine.problems() == []
    assert "cache-vllm-0" in claims
    assert len(claims) == 2
    assert cache["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"] == {"storage": "1Gi"}
    await engine.retire(GREEN)
    await here.gone("persistentvolumeclaims", next(name for name in claims if name != "cache-vllm-0"))
    assert await args_of_pods(here) == {"vllm-0": "8"}
    assert [server.name for server in await engine.observe()] == ["vllm"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"podManagementPolicy": "Parallel"},
        {"updateStrategy": {"type": "OnDelete"}},
    ],
    ids=["ordered", "parallel", "on delete"],
)
async def test_the_promoted_flags_reach_every_pod_of_the_statefulset(
    here: Namespace, tmp_path: Path, spec: Json
) -> None:
    engine = await handing_over(here, tmp_path, replicas=2, **spec)

    moved = await engine.retire(BLUE)
    [server] = await engine.observe()

    document = await here.available("vllm", "statefulsets")
    assert (moved, server.name, server.ours, server.setting["max_num_seqs"]) == (
        "chat-r1",
        "chat-r1",
        False,
        16,
    )
    assert await args_of_pods(here) == {"vllm-0": "16", "vllm-1": "16"}
    assert await names(here, "deployments") == set()
    assert await names(here, "persistentvolumeclaims") == {"cache-vllm-0", "cache-vllm-1"}
    assert document["metadata"]["annotations"]["flettner.dev/change"] == '{"max_num_seqs": [8, 16]}'


async def test_green_goes_on_to_serve_where_the_changed_statefulset_cannot_start(
    here: Namespace, tmp_path: Path
) -> None:
    engine = await handing_over(here, tmp_path)
    missing = container(*FLAGS, image="vllm/vllm-openai:missing", volumeMounts=[CACHE])
    by_hand = {"type": "OnDelete", "rollingUpdate": None}
    change = {"spec": {"updateStrategy": by_hand, "template": {"spec": {"containers": [missing]}}}}
    await here.api.patch(here.path("statefulsets", "vllm"), change)

    await engine.retire(BLUE)
    [green] = await engine.observe()

    assert green.name == "chat-r1"
    assert (await here.get("statefulsets", "vllm"))["spec"]["replicas"] == 0
    repaired = {"spec": {"template": {"spec": {"containers": [container(*FLAGS, volumeMounts=[CACHE])]}}}}
    await here.api.patch(here.path("statefulsets", "vllm"), repaired)
    later = Server(name="chat-r2", setting={**GREEN.setting, "max_num_seqs": 32}, like="chat-r1")
    await engine.launch(later, 60)
    await engine.retire(green)
    assert await args_of_pods(here) == {"vllm-0": "32"}


async def test_detach_starts_the_statefulset_again_and_leaves_no_annotation(
    here: Namespace, tmp_path: Path
) -> None:
    engine = await handing_over(here, tmp_path)
    await engine.stop(BLUE)

    said = [*await engine.give_back(), *await engine.clear()]

    document = await here.available("vllm", "statefulsets")
    assert said[0] == "the StatefulSet vllm is scaled to 1 again"
    assert "flettner.dev" not in str(document["metadata"].get("annotations"))
    assert await names(here, "deployments") == set()


async def test_init_finds_it_and_check_knows_that_it_is_missing(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await bind(here, tmp_path, kind="statefulsets")
    [problem] = await engine.problems()
    await serve(here)
    monkeypatch.setenv("KUBECONFIG", str(await here.user("reader", *ROLE)))

    [(server, options)] = (await KubernetesPlugin.find_unmanaged_servers()).servers

    assert problem == f"statefulsets: vllm: there is none in the namespace {here.name} (there are: none)"
    assert (server.name, server.setting["max_num_seqs"]) == ("vllm", 8)
    assert options == {"statefulsets": ["vllm"], "namespace": here.name}


@pytest.mark.parametrize("kind", ["statefulsets", "deployments"])
async def test_a_leaderworkerset_is_refused_by_name(here: Namespace, tmp_path: Path, kind: str) -> None:
    body = statefulset("vllm", container(*FLAGS))
    body["metadata"]["ownerReferences"] = [
        controlled_by("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "vllm")
    ]
    await here.create("statefulsets", body)
    engine = await bind(here, tmp_path, kind=kind)

    [problem] = await engine.problems()

    assert problem.startswith(f"{kind}: vllm: ")
    assert "it belongs to the LeaderWorkerSet vllm, where several pods are one engine" in problem


async def test_one_that_is_named_as_a_deployment_is_pointed_out(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)

    assert await engine.problems() == [
        "deployments: vllm: there is a StatefulSet of this name: name it in statefulsets"
    ]


async def test_one_of_a_gitops_controller_gets_a_patch(here: Namespace, tmp_path: Path) -> None:
    body = statefulset("vllm", container(*FLAGS))
    body["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "chat:apps/StatefulSet:chat/vllm"}
    await here.run(body)
    engine = await bind(here, tmp_path, kind="statefulsets")
    [blue] = await engine.observe()

    result = await engine.preflight([blue], GREEN.setting, "auto")

    assert (result.problem, result.owner) == ("", "Argo CD")
    assert result.patch.startswith("# StatefulSet vllm, container vllm: max_num_seqs 8 -> 16")
    merged = apply(body, yaml.safe_load(result.patch))
    assert merged["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "16"


@pytest.mark.timeout(900)
async def test_a_statefulset_changes_under_load_and_loses_nothing(here: Namespace, tmp_path: Path) -> None:
    server = container(*FLAGS, gpus=1, volumeMounts=[{"name": "cache", "mountPath": "/cache"}])
    await here.run(statefulset("vllm", server, claims=[claim("cache")]))
    async with site_of(here, tmp_path / "s", kind="statefulsets").running() as site:
        async with site.clients(load=Load(streams=8), timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            await until(
                site.deployments, lambda deployments: not deployments, "green's Deployment to end", 240.0
            )
            left = await here.available("vllm", "statefulsets")

        assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
        assert lost(traffic) == []
        assert "16" in left["spec"]["template"]["spec"]["containers"][0]["args"]
        assert [pod["metadata"]["name"] for pod in await here.list("pods")] == ["vllm-0"]
