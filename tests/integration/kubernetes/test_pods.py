"""Pods of the test cluster live as those of a kubelet do."""

import signal
from pathlib import Path

import pytest
from lightkube import AsyncClient, KubeConfig

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.manifests import container, deployment, headless_service
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.queries import first_container, pods, request, waiting_for

pytestmark = pytest.mark.timeout(180)


async def test_a_killed_process_is_started_again_and_again_after_longer_times(here: Namespace) -> None:
    await here.run(deployment("vllm"))
    running = next(iter(here.node.pods.values()))

    running.container().signal(signal.SIGKILL)
    pod = await here.pod("vllm", lambda document: first_container(document)["restartCount"] == 1)
    assert first_container(pod)["lastState"]["terminated"]["exitCode"] == 137
    running.container().signal(signal.SIGKILL)
    pod = await here.pod("vllm", lambda document: "waiting" in first_container(document)["state"])

    assert first_container(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert first_container(pod)["lastState"]["terminated"]["reason"] == "Error"
    await here.available("vllm")


async def test_a_container_over_its_memory_limit_says_so(here: Namespace) -> None:
    await here.run(deployment("vllm"))

    here.node.kill_for_memory(here.node.pod("vllm"))

    pod = await here.pod("vllm", lambda document: first_container(document)["restartCount"] == 1)
    terminated = first_container(pod)["lastState"]["terminated"]
    assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)


@pytest.mark.parametrize(("flag", "code"), [("--enforce-eager", 0), ("--never-stops", 137)])
async def test_a_deleted_pod_gets_sigterm_and_sigkill_after_its_grace_period(
    here: Namespace, flag: str, code: int
) -> None:
    stub = container("tiny", flag, image="stub:1")
    await here.run(deployment("vllm", stub, grace_s=2))
    pod = here.node.pod("vllm")

    await here.api.delete(here.path("deployments", "vllm"))

    await here.gone("pods", pod.name)
    assert pod.container().state["terminated"]["exitCode"] == code


async def test_a_pod_serves_until_its_pre_stop_hook_ends(here: Namespace, tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    hook = {"exec": {"command": ["sh", "-c", "while [ ! -e $0 ]; do sleep 0.1; done", str(drained)]}}
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.run(deployment("vllm", container(lifecycle={"preStop": hook}), grace_s=60))
    pod = here.node.pod("vllm")

    await here.api.patch(here.path("deployments", "vllm"), {"spec": {"replicas": 0}})
    await here.event("Killing")

    await here.eventually(lambda: _no_address(here, "vllm"))
    assert await request(pod.address) == 200
    drained.touch()
    await here.gone("pods", pod.name)


async def test_an_image_that_is_missing_is_named(here: Namespace) -> None:
    document = deployment("vllm", container(image="vllm/vllm-openai:missing"))
    document["spec"]["progressDeadlineSeconds"] = 2
    await here.create("deployments", document)

    for reason in ("ErrImagePull", "ImagePullBackOff"):
        await here.pod("vllm", lambda pod, reason=reason: waiting_for(pod) == reason)  # type: ignore[misc]
    stalled = await here.until("deployments", "vllm", _has_no_progress)
    assert stalled["status"].get("availableReplicas") is None


async def test_the_settings_of_a_container_come_from_config_maps(here: Namespace) -> None:
    settings = {"seqs": "7", "config.yaml": "max-model-len: 512"}
    await here.create("configmaps", {"metadata": {"name": "settings"}, "data": settings})
    reference = {"name": "settings", "key": "seqs"}
    server = container(
        'cat config.yaml; echo; echo "$@"; ls /dev/shm; exec vllm serve tiny --max-num-seqs "$1"',
        "sh",
        "$(SEQS)",
        "$(UNKNOWN)",
        "$$(SEQS)",
        command=["sh", "-c"],
        env=[{"name": "SEQS", "valueFrom": {"configMapKeyRef": reference}}],
        workingDir="/settings",
        volumeMounts=[
            {"name": "settings", "mountPath": "/settings"},
            {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108 - of the container
        ],
    )
    volumes = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    await here.run(deployment("vllm", server, volumes=volumes))

    log = await here.log(here.node.pod("vllm").name)
    assert log.splitlines()[:2] == ["max-model-len: 512", "7 $(UNKNOWN) $(SEQS)"]


async def test_a_config_map_that_is_missing_keeps_a_container_from_its_start(here: Namespace) -> None:
    source = {"configMapKeyRef": {"name": "later", "key": "seqs"}}
    server = container(env=[{"name": "SEQS", "valueFrom": source}])
    await here.create("deployments", deployment("vllm", server))
    await here.pod("vllm", lambda document: waiting_for(document) == "CreateContainerConfigError")

    await here.create("configmaps", {"metadata": {"name": "later"}, "data": {"seqs": "1"}})
    await here.available("vllm")


async def test_liveness_and_startup_probes_restart_a_container(here: Namespace) -> None:
    failing = {"httpGet": {"path": "/no-such-path", "port": 8000}, "periodSeconds": 1, "failureThreshold": 2}
    await here.create("deployments", deployment("alive", container(livenessProbe=failing)))
    await here.create("deployments", deployment("starting", container(startupProbe=failing)))

    for name in ("alive", "starting"):
        await here.pod(name, lambda document: first_container(document).get("restartCount", 0) >= 1)
    killing = {event["message"] for event in await here.list("events") if event["reason"] == "Killing"}
    assert killing == {
        f"Container vllm failed {kind} probe, will be restarted" for kind in ("liveness", "startup")
    }


async def test_logs_come_through_the_api(here: Namespace, cluster: Cluster) -> None:
    here.node.back_off_s = 30.0
    stub = container("tiny", "--says=one", "--dies-of-memory", image="stub:1")
    await here.create("deployments", deployment("vllm", stub))
    pod = await here.pod("vllm", lambda document: waiting_for(document) == "CrashLoopBackOff")
    name = pod["metadata"]["name"]

    async with AsyncClient(KubeConfig.from_file(cluster.kubeconfig()), namespace=here.name) as client:
        lines = [line async for line in client.log(name, tail_lines=1)]
    previous = await here.log(name, previous="true")

    assert lines == [
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n"
    ]
    assert previous.splitlines()[0] == "one"


async def test_an_evicted_pod_is_replaced_and_stays_as_failed(here: Namespace) -> None:
    await here.run(deployment("vllm"))
    evicted = here.node.pod("vllm")

    await here.node.evict(evicted)
    await here.eventually(lambda: pods(here, 2))
    await here.available("vllm")

    status = (await here.get("pods", evicted.name))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    await here.api.delete(here.path("deployments", "vllm"))
    await here.gone("pods", evicted.name)


def _has_no_progress(document: Json) -> bool:
    conditions = document["status"].get("conditions", ())
    return any(condition.get("reason") == "ProgressDeadlineExceeded" for condition in conditions)


async def _no_address(here: Namespace, service: str) -> Json:
    return {} if await here.dns.resolve(f"{service}.{here.name}.svc") else {"addresses": 0}
