"""The cluster of the tests behaves like Kubernetes."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Secret

from actuators.envoy.process import find_binary
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.manifests import container, deployment, headless_service, rule
from tests.support.kubernetes.namespace import Namespace

pytestmark = pytest.mark.timeout(180)

_SAY_ADDRESSES = """
import socket, sys
print(*sorted({found[4][0] for found in socket.getaddrinfo(sys.argv[1], 8000, socket.AF_INET)}))
"""
_SAY_HOSTS = """
import json, urllib.request
try:
    with urllib.request.urlopen("http://127.0.0.1:9901/clusters?format=json") as answer:
        (cluster,) = json.load(answer)["cluster_statuses"]
    hosts = [one["address"]["socket_address"] for one in cluster.get("host_statuses", ())]
    print(*(f"{one['address']}:{one['port_value']}" for one in hosts))
except OSError:
    pass
"""


async def request(address: str, path: str = "/v1/models") -> int:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        session.get(f"http://{address}:8000{path}") as answer,
    ):
        return answer.status


async def inside(here: Namespace, *command: str) -> str:
    """What a program says that runs in the pods' network with the cluster's DNS."""
    process = await asyncio.create_subprocess_exec(*here.inside(*command), stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode().strip()


def first_container(pod: Json) -> Json:
    found: Json = pod["status"].get("containerStatuses", [{}])[0]
    return found


@pytest.mark.smoke
async def test_all_pods_of_a_deployment_answer_at_the_name_of_its_service(here: Namespace) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm", container(gpus=1), replicas=2))
    await here.available("vllm")

    addresses = sorted(pod.address for pod in here.node.pods.values())

    for name in (f"vllm.{here.name}.svc", f"vllm.{here.name}.svc.cluster.local", "vllm"):
        said = await inside(here, sys.executable, "-c", _SAY_ADDRESSES, name)
        assert sorted(said.split()) == addresses, name
    assert [await request(address) for address in addresses] == [200, 200]


async def test_envoy_follows_the_addresses_of_a_service(here: Namespace) -> None:
    name = f"vllm.{here.name}.svc"
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm"))
    await here.available("vllm")
    first = here.node.pod("vllm")
    binary = find_binary("")
    assert binary is not None

    envoy = await asyncio.create_subprocess_exec(
        *here.inside(binary, "--config-yaml", json.dumps(_envoy(name)), "--log-level", "error"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await here.eventually(lambda: _clusters(here, {first.address}))
        await here.api.patch(here.path("deployments", "vllm"), {"spec": {"replicas": 3}})
        await here.available("vllm")
        three = {pod.address for pod in here.node.pods.values()}
        await here.eventually(lambda: _clusters(here, three))
    finally:
        envoy.kill()
        await envoy.wait()
    assert len(three) == 3


async def test_a_pod_that_is_not_ready_has_no_address_in_dns(here: Namespace) -> None:
    never = {"httpGet": {"path": "/no-such-path", "port": 8000}, "periodSeconds": 1}
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm", container(readinessProbe=never)))
    pod = await here.pod("vllm", lambda one: "running" in first_container(one).get("state", {}))

    event = await here.event("Unhealthy")

    assert event["message"] == "Readiness probe failed: HTTP probe failed with statuscode: 404"
    assert await request(pod["status"]["podIP"]) == 200
    assert await here.dns.resolve(f"vllm.{here.name}.svc") == []
    assert await here.dns.resolve(f"other.{here.name}.svc") is None


async def test_a_killed_process_is_started_again_and_again_after_longer_times(here: Namespace) -> None:
    await here.create("deployments", deployment("vllm"))
    await here.available("vllm")
    running = next(iter(here.node.pods.values()))

    running.container().signal(signal.SIGKILL)
    pod = await here.pod("vllm", lambda one: first_container(one)["restartCount"] == 1)
    assert first_container(pod)["lastState"]["terminated"]["exitCode"] == 137
    running.container().signal(signal.SIGKILL)
    pod = await here.pod("vllm", lambda one: "waiting" in first_container(one)["state"])

    assert first_container(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert first_container(pod)["lastState"]["terminated"]["reason"] == "Error"
    await here.available("vllm")


async def test_a_container_over_its_memory_limit_says_so(here: Namespace) -> None:
    await here.create("deployments", deployment("vllm"))
    await here.available("vllm")

    here.node.kill_for_memory(here.node.pod("vllm"))

    pod = await here.pod("vllm", lambda one: first_container(one)["restartCount"] == 1)
    terminated = first_container(pod)["lastState"]["terminated"]
    assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)


@pytest.mark.parametrize(("flag", "code"), [("--enforce-eager", 0), ("--never-stops", 137)])
async def test_a_deleted_pod_gets_sigterm_and_sigkill_after_its_grace_period(
    here: Namespace, flag: str, code: int
) -> None:
    stub = container("tiny", flag, image="stub:1")
    await here.create("deployments", deployment("vllm", stub, grace_s=2))
    await here.available("vllm")
    pod = here.node.pod("vllm")

    await here.api.delete(here.path("deployments", "vllm"))

    await here.gone("pods", pod.name)
    assert pod.container().state["terminated"]["exitCode"] == code


@pytest.mark.smoke
async def test_pods_wait_for_free_gpus_and_say_so(here: Namespace) -> None:
    await here.create("deployments", deployment("blue", container(gpus=2)))
    await here.available("blue")
    await here.create("deployments", deployment("green", container(gpus=1)))
    pod = await here.pod("green", lambda one: one["status"].get("conditions"))

    condition = pod["status"]["conditions"][0]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "Unschedulable")
    assert condition["message"] == (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, "
        "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }. "
        "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, "
        "1 Preemption is not helpful for scheduling."
    )
    assert (await here.event("FailedScheduling"))["message"] == condition["message"]

    await here.api.patch(here.path("deployments", "blue"), {"spec": {"replicas": 0}})
    await here.available("green")


async def test_an_image_that_is_missing_is_named(here: Namespace) -> None:
    document = deployment("vllm", container(image="vllm/vllm-openai:missing"))
    document["spec"]["progressDeadlineSeconds"] = 2
    await here.create("deployments", document)

    for reason in ("ErrImagePull", "ImagePullBackOff"):
        await here.pod("vllm", lambda one, reason=reason: _waits(one) == reason)  # type: ignore[misc]
    found = await here.until("deployments", "vllm", _has_no_progress)
    assert found["status"].get("availableReplicas") is None


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
    await here.create("deployments", deployment("vllm", server, volumes=volumes))
    await here.available("vllm")

    log = await here.log(here.node.pod("vllm").name)
    assert log.splitlines()[:2] == ["max-model-len: 512", "7 $(UNKNOWN) $(SEQS)"]


async def test_a_pod_serves_until_its_pre_stop_hook_ends(here: Namespace, tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    hook = {"exec": {"command": ["sh", "-c", "while [ ! -e $0 ]; do sleep 0.1; done", str(drained)]}}
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm", container(lifecycle={"preStop": hook}), grace_s=60))
    await here.available("vllm")
    pod = here.node.pod("vllm")

    await here.api.patch(here.path("deployments", "vllm"), {"spec": {"replicas": 0}})
    await here.event("Killing")

    await here.eventually(lambda: _no_address(here, "vllm"))
    assert await request(pod.address) == 200
    drained.touch()
    await here.gone("pods", pod.name)


async def test_a_config_map_that_is_missing_keeps_a_container_from_its_start(here: Namespace) -> None:
    source = {"configMapKeyRef": {"name": "later", "key": "seqs"}}
    server = container(env=[{"name": "SEQS", "valueFrom": source}])
    await here.create("deployments", deployment("vllm", server))
    await here.pod("vllm", lambda one: _waits(one) == "CreateContainerConfigError")

    await here.create("configmaps", {"metadata": {"name": "later"}, "data": {"seqs": "1"}})
    await here.available("vllm")


async def test_liveness_and_startup_probes_restart_a_container(here: Namespace) -> None:
    failing = {"httpGet": {"path": "/no-such-path", "port": 8000}, "periodSeconds": 1, "failureThreshold": 2}
    await here.create("deployments", deployment("alive", container(livenessProbe=failing)))
    await here.create("deployments", deployment("starting", container(startupProbe=failing)))

    for name in ("alive", "starting"):
        await here.pod(name, lambda one: first_container(one).get("restartCount", 0) >= 1)
    killing = {one["message"] for one in await here.list("events") if one["reason"] == "Killing"}
    assert killing == {
        f"Container vllm failed {kind} probe, will be restarted" for kind in ("liveness", "startup")
    }


async def test_logs_come_through_the_api(here: Namespace, cluster: Cluster) -> None:
    here.node.back_off_s = 30.0
    stub = container("tiny", "--says=one", "--dies-of-memory", image="stub:1")
    await here.create("deployments", deployment("vllm", stub))
    pod = await here.pod("vllm", lambda one: _waits(one) == "CrashLoopBackOff")
    name = pod["metadata"]["name"]

    async with AsyncClient(KubeConfig.from_file(cluster.kubeconfig()), namespace=here.name) as client:
        lines = [line async for line in client.log(name, tail_lines=1)]
    previous = await here.log(name, previous="true")

    assert lines == [
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n"
    ]
    assert previous.splitlines()[0] == "one"


@pytest.mark.smoke
async def test_a_user_has_the_rights_of_a_role_in_one_namespace(here: Namespace) -> None:
    kubeconfig = await here.user("reader", rule(["apps"], ["deployments"], ["get", "list"]))
    await here.create("deployments", deployment("vllm", replicas=0))
    refused = []

    async with AsyncClient(KubeConfig.from_file(kubeconfig)) as client:
        found = [one.metadata.name async for one in client.list(Deployment) if one.metadata]
        for attempt in (
            client.delete(Deployment, "vllm"),
            client.get(Secret, "any"),
            client.get(Deployment, "vllm", namespace="default"),
        ):
            with pytest.raises(ApiError) as raised:
                await attempt
            refused.append(raised.value.status.code)

    assert found == ["vllm"]
    assert refused == [403, 403, 403]


async def test_namespaces_do_not_see_each_other(here: Namespace, cluster: Cluster) -> None:
    async with Namespace(cluster, gpus=2) as there:
        for one in (here, there):
            await one.create("services", headless_service("vllm", {"app": "vllm"}))
            await one.create("deployments", deployment("vllm", container(gpus=2)))
        for one in (here, there):
            await one.available("vllm")

        for one in (here, there):
            (pod,) = one.node.pods.values()
            assert await one.dns.resolve(f"vllm.{one.name}.svc") == [pod.address]
            assert [item["metadata"]["name"] for item in await one.list("pods")] == [pod.name]


async def test_an_evicted_pod_is_replaced_and_stays_as_failed(here: Namespace) -> None:
    await here.create("deployments", deployment("vllm"))
    await here.available("vllm")
    evicted = here.node.pod("vllm")

    await here.node.evict(evicted)
    await here.eventually(lambda: _pods(here, 2))
    await here.available("vllm")

    status = (await here.get("pods", evicted.name))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    await here.api.delete(here.path("deployments", "vllm"))
    await here.gone("pods", evicted.name)


async def test_the_pods_of_a_lost_node_are_made_on_another_one(here: Namespace) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm", container(gpus=2)))
    await here.available("vllm")
    lost = here.node.pod("vllm").name
    other = await here.add_node(gpus=2)

    await here.node.lose()
    await here.eventually(lambda: _pods(here, 2))  # the controllers of the cluster delete it, nobody confirms
    await here.pod("vllm", lambda one: one["metadata"]["name"] != lost and first_container(one).get("ready"))

    assert "deletionTimestamp" in (await here.get("pods", lost))["metadata"]
    (pod,) = other.pods.values()
    assert await here.dns.resolve(f"vllm.{here.name}.svc") == [pod.address]


async def test_pods_and_dns_go_on_without_the_api_server(here: Namespace, cluster: Cluster) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm"))
    await here.available("vllm")
    pod = here.node.pod("vllm")
    known = await here.dns.resolve(f"vllm.{here.name}.svc")

    cluster.stop_api()
    assert await here.dns.resolve(f"vllm.{here.name}.svc") == known == [pod.address]
    assert await request(pod.address) == 200
    pod.container().signal(signal.SIGKILL)
    cluster.start_api()
    await asyncio.to_thread(cluster.wait)

    await here.pod("vllm", lambda one: first_container(one)["restartCount"] == 1)
    await here.available("vllm")


def _waits(pod: Json) -> str:
    return str(first_container(pod).get("state", {}).get("waiting", {}).get("reason", ""))


def _has_no_progress(found: Json) -> bool:
    conditions = found["status"].get("conditions", ())
    return any(one.get("reason") == "ProgressDeadlineExceeded" for one in conditions)


def _envoy(name: str) -> Json:
    """A configuration with one cluster, and an admin interface at port 9901."""
    address = {"socket_address": {"address": name, "port_value": 8000}}
    cluster = {
        "name": "vllm",
        "type": "STRICT_DNS",
        "dns_refresh_rate": "0.5s",
        "load_assignment": {
            "cluster_name": "vllm",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    return {
        "admin": {"address": {"socket_address": {"address": "0.0.0.0", "port_value": 9901}}},  # noqa: S104
        "static_resources": {"clusters": [cluster]},
    }


async def _clusters(here: Namespace, addresses: set[str]) -> Json:
    """Envoy's view of the hosts, once it is `addresses`."""
    said = await inside(here, sys.executable, "-c", _SAY_HOSTS)
    return {"hosts": said} if {host.split(":")[0] for host in said.split()} == addresses else {}


async def _no_address(here: Namespace, service: str) -> Json:
    return {} if await here.dns.resolve(f"{service}.{here.name}.svc") else {"addresses": 0}


async def _pods(here: Namespace, count: int) -> Json:
    found = await here.list("pods")
    return {"items": found} if len(found) == count else {}
