"""Autoscalers, disruption budgets and quotas beside a rollout, by the controllers of Kubernetes."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes import client as kubernetes
from flettner.simulator.traffic import Load
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import BLUE, FLAGS, GREEN, bind, names, serve, with_green
from tests.support.kubernetes.manifests import autoscaler, container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import site_of
from tests.support.rig import lost

pytestmark = pytest.mark.timeout(180)

NO_CHANGE = {"selectPolicy": "Disabled"}
DISABLED = {"spec": {"minReplicas": 1, "behavior": {"scaleUp": NO_CHANGE, "scaleDown": NO_CHANGE}}}


@pytest.fixture(autouse=True)
def _versions(here: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes 1.20 has the version before, with the same fields."""
    group, version = here.policy.split("/")
    budget = kubernetes._resource(group, version, "PodDisruptionBudget")
    monkeypatch.setattr(kubernetes, "POD_DISRUPTION_BUDGET", budget)


async def counts(here: Namespace) -> tuple[int, set[str]]:
    """The replicas of the operator's Deployment, and the last words of all pods' commands."""
    document = await here.available("vllm")
    pods = [pod for pod in await here.list("pods") if "deletionTimestamp" not in pod["metadata"]]
    return document["spec"]["replicas"], {pod["spec"]["containers"][0]["args"][-1] for pod in pods}


async def scale_to_3(here: Namespace) -> None:
    """By the autoscaler of Kubernetes."""
    await here.api.patch(here.path("horizontalpodautoscalers", "vllm"), {"spec": {"minReplicas": 3}})
    await here.until("deployments", "vllm", lambda document: document["spec"]["replicas"] == 3)


async def test_one_that_would_give_pods_back_delays_the_rollout(here: Namespace, tmp_path: Path) -> None:
    await serve(here, replicas=2)
    await here.create("horizontalpodautoscalers", autoscaler("vllm", least=2))
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    before = await engine.preflight([blue], GREEN.setting, "auto")
    with pytest.raises(ActError, match="set its minReplicas to 1") as failure:
        await engine.stop(blue, keep=1)
    await here.api.patch(here.path("horizontalpodautoscalers", "vllm"), DISABLED)
    after = await engine.preflight([blue], GREEN.setting, "auto")

    assert "HorizontalPodAutoscaler vllm would give vllm the pods back" in before.problem
    assert failure.value.external
    assert (await here.get("deployments", "vllm"))["spec"]["replicas"] == 2
    assert after.problem == ""


@pytest.mark.timeout(900)
async def test_a_daemon_waits_until_it_is_disabled_and_leaves_it_the_new_pods(
    here: Namespace, tmp_path: Path
) -> None:
    await here.add_node(gpus=1)
    await serve(here, replicas=2, gpus=1)
    await here.create("horizontalpodautoscalers", autoscaler("vllm", least=2))
    site = site_of(here, tmp_path / "s")
    site.patience_s = 600.0
    async with site.running():
        refused = await site.propose(max_num_seqs=16)
        await here.api.patch(here.path("horizontalpodautoscalers", "vllm"), DISABLED)
        async with site.clients(load=Load(streams=8), timeout_s=90.0) as traffic:
            rollout = await site.switch(max_num_seqs=16)
            await site.restored()
        await scale_to_3(here)

        assert refused["status"] == "refused"
        assert site.named_in_audit("the HorizontalPodAutoscaler vllm would give vllm the pods back")
        assert (rollout["outcome"], lost(traffic)) == ("promoted", []), rollout["why"]
        assert await counts(here) == (3, {"16"})


async def test_a_disabled_one_leaves_the_pods_to_the_rollout(here: Namespace, tmp_path: Path) -> None:
    await serve(here, replicas=2)
    body = autoscaler("vllm", least=1)
    await here.create("horizontalpodautoscalers", body | {"spec": body["spec"] | DISABLED["spec"]})
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    await engine.stop(blue, keep=1)

    await here.until(
        "horizontalpodautoscalers", "vllm", lambda document: document["status"].get("currentReplicas") == 1
    )
    assert (await here.get("deployments", "vllm"))["spec"]["replicas"] == 1
    again = await engine.launch(blue, 60)
    assert again.replicas == 2


async def test_one_of_a_single_pod_delays_nothing(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    await here.create("horizontalpodautoscalers", autoscaler("vllm", least=1))
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    result = await engine.preflight([blue], GREEN.setting, "auto")

    assert result.problem == ""


async def test_keda_starts_blue_again_so_that_it_must_pause(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    await here.create("horizontalpodautoscalers", autoscaler("vllm", least=1, keda=True))
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    result = await engine.preflight([blue], GREEN.setting, "auto")

    assert "autoscaling.keda.sh/paused" in result.problem


async def test_keda_that_goes_on_in_a_rollout_is_named_and_green_goes_on_to_serve(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)
    engine = await with_green(here, tmp_path)
    await here.create("horizontalpodautoscalers", autoscaler("vllm", least=1, keda=True))

    with pytest.raises(ActError, match="KEDA's ScaledObject vllm would start pods of vllm"):
        await engine.stop(BLUE)
    with capture_logs() as logs:
        moved = await engine.retire(BLUE)

    assert moved == ""
    assert "autoscaling.keda.sh/paused" in logs[0]["why"]
    assert [(server.name, server.replicas) for server in await engine.observe()] == [("chat-r1", 1)]


async def test_the_autoscaler_of_kubernetes_scales_before_and_after_the_handover(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)
    engine = await with_green(here, tmp_path)
    await here.create("horizontalpodautoscalers", autoscaler("vllm", least=2))
    await here.until("deployments", "vllm", lambda document: document["spec"]["replicas"] == 2)

    await engine.retire(BLUE)

    assert await counts(here) == (2, {"16"})
    assert "flettner.dev/replicas" not in (await here.get("deployments", "vllm"))["metadata"]["annotations"]
    await scale_to_3(here)
    assert await counts(here) == (3, {"16"})
    assert [(server.name, server.replicas) for server in await engine.observe()] == [("chat-r1", 3)]


async def test_a_disruption_budget_does_not_count_green(here: Namespace, tmp_path: Path) -> None:
    await here.create(
        "deployments", deployment("vllm", container(*FLAGS), labels={"team": "chat", "tier": "gpu"})
    )
    await here.available("vllm")
    selectors: dict[str, Json] = {
        "by-label": {"matchLabels": {"team": "chat"}},
        "by-expression": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu"]}]},
    }
    for name, selector in selectors.items():
        body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}}
        await here.create("poddisruptionbudgets", body)

    await with_green(here, tmp_path)

    assert len(await here.list("pods")) == 2
    for name in selectors:
        budget = await here.until(
            "poddisruptionbudgets", name, lambda document: document["status"].get("currentHealthy")
        )
        assert (budget["status"]["expectedPods"], budget["status"]["disruptionsAllowed"]) == (1, 0)


@pytest.mark.parametrize("resource", ["count/deployments.apps", "pods"])
async def test_an_exceeded_quota_is_named(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resource: str
) -> None:
    monkeypatch.setattr("flettner.actuators.kubernetes.start._NO_NODE_S", 1.0)
    await serve(here)
    await here.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {resource: "1"}}})
    await here.until(
        "resourcequotas", "q", lambda document: document["status"].get("used", {}).get(resource) == "1"
    )
    engine = await bind(here, tmp_path)
    await engine.observe()

    with pytest.raises(ActError, match=f"exceeded quota: q.*{resource}=1") as failure:
        await engine.launch(GREEN, 20)

    assert failure.value.external
    assert await names(here, "deployments") == {"vllm"}
