"""The cluster of the tests behaves like Kubernetes."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.manifests import container, deployment, headless_service
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.queries import first_container, request

pytestmark = pytest.mark.timeout(180)

_SAY_ADDRESSES = """
import socket, sys
print(*sorted({found[4][0] for found in socket.getaddrinfo(sys.argv[1], 8000, socket.AF_INET)}))
"""


@pytest.mark.smoke
async def test_all_pods_of_a_deployment_answer_at_the_name_of_its_service(here: Namespace) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.run(deployment("vllm", container(gpus=1), replicas=2))

    addresses = sorted(pod.address for pod in here.node.pods.values())

    for name in (f"vllm.{here.name}.svc", f"vllm.{here.name}.svc.cluster.local", "vllm"):
        said = await here.output(sys.executable, "-c", _SAY_ADDRESSES, name)
        assert sorted(said.split()) == addresses, name
    assert [await request(address) for address in addresses] == [200, 200]


async def test_a_pod_that_is_not_ready_has_no_address_in_dns(here: Namespace) -> None:
    never = {"httpGet": {"path": "/no-such-path", "port": 8000}, "periodSeconds": 1}
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm", container(readinessProbe=never)))
    pod = await here.pod("vllm", lambda document: "running" in first_container(document).get("state", {}))

    event = await here.event("Unhealthy", "statuscode")  # before, the server may not listen yet

    assert event["message"] == "Readiness probe failed: HTTP probe failed with statuscode: 404"
    assert await request(pod["status"]["podIP"]) == 200
    assert await here.dns.resolve(f"vllm.{here.name}.svc") == []
    assert await here.dns.resolve(f"other.{here.name}.svc") is None


async def test_namespaces_do_not_see_each_other(here: Namespace, cluster: Cluster) -> None:
    async with Namespace(cluster, gpus=2) as there:
        for namespace in (here, there):
            await namespace.create("services", headless_service("vllm", {"app": "vllm"}))
            await namespace.create("deployments", deployment("vllm", container(gpus=2)))
        for namespace in (here, there):
            await namespace.available("vllm")

        for namespace in (here, there):
            (pod,) = namespace.node.pods.values()
            assert await namespace.dns.resolve(f"vllm.{namespace.name}.svc") == [pod.address]
            assert [item["metadata"]["name"] for item in await namespace.list("pods")] == [pod.name]


async def test_pods_and_dns_go_on_without_the_api_server(here: Namespace, cluster: Cluster) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.run(deployment("vllm"))
    pod = here.node.pod("vllm")
    addresses = await here.dns.resolve(f"vllm.{here.name}.svc")

    cluster.stop_api()
    assert await here.dns.resolve(f"vllm.{here.name}.svc") == addresses == [pod.address]
    assert await request(pod.address) == 200
    pod.container().signal(signal.SIGKILL)
    cluster.start_api()
    await asyncio.to_thread(cluster.wait)

    await here.pod("vllm", lambda document: first_container(document)["restartCount"] == 1)
    await here.available("vllm")


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


async def _no_address(here: Namespace, service: str) -> Json:
    return {} if await here.dns.resolve(f"{service}.{here.name}.svc") else {"addresses": 0}
