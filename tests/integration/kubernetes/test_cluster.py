"""The cluster of the tests behaves like Kubernetes."""

import asyncio
import json
import signal
import sys

import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Secret

from flettner.actuators.envoy.process import find_binary
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.manifests import container, deployment, headless_service, rule
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.queries import first_container, pods, request

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


@pytest.mark.smoke
async def test_all_pods_of_a_deployment_answer_at_the_name_of_its_service(here: Namespace) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.run(deployment("vllm", container(gpus=1), replicas=2))

    addresses = sorted(pod.address for pod in here.node.pods.values())

    for name in (f"vllm.{here.name}.svc", f"vllm.{here.name}.svc.cluster.local", "vllm"):
        said = await here.output(sys.executable, "-c", _SAY_ADDRESSES, name)
        assert sorted(said.split()) == addresses, name
    assert [await request(address) for address in addresses] == [200, 200]


async def test_envoy_follows_the_addresses_of_a_service(here: Namespace) -> None:
    name = f"vllm.{here.name}.svc"
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.run(deployment("vllm"))
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
    pod = await here.pod("vllm", lambda document: "running" in first_container(document).get("state", {}))

    event = await here.event("Unhealthy", "statuscode")  # before, the server may not listen yet

    assert event["message"] == "Readiness probe failed: HTTP probe failed with statuscode: 404"
    assert await request(pod["status"]["podIP"]) == 200
    assert await here.dns.resolve(f"vllm.{here.name}.svc") == []
    assert await here.dns.resolve(f"other.{here.name}.svc") is None


@pytest.mark.smoke
async def test_pods_wait_for_free_gpus_and_say_so(here: Namespace) -> None:
    await here.run(deployment("blue", container(gpus=2)))
    await here.create("deployments", deployment("green", container(gpus=1)))
    pod = await here.pod("green", lambda document: document["status"].get("conditions"))

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


@pytest.mark.smoke
async def test_a_user_has_the_rights_of_a_role_in_one_namespace(here: Namespace) -> None:
    kubeconfig = await here.user("reader", rule(["apps"], ["deployments"], ["get", "list"]))
    await here.create("deployments", deployment("vllm", replicas=0))
    refused = []

    async with AsyncClient(KubeConfig.from_file(kubeconfig)) as client:
        names = [item.metadata.name async for item in client.list(Deployment) if item.metadata]
        for attempt in (
            client.delete(Deployment, "vllm"),
            client.get(Secret, "any"),
            client.get(Deployment, "vllm", namespace="default"),
        ):
            with pytest.raises(ApiError) as raised:
                await attempt
            refused.append(raised.value.status.code)

    assert names == ["vllm"]
    assert refused == [403, 403, 403]


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


async def test_the_pods_of_a_lost_node_are_made_on_another_one(here: Namespace) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.run(deployment("vllm", container(gpus=2)))
    lost = here.node.pod("vllm").name
    other = await here.add_node(gpus=2)

    await here.node.lose()
    await here.eventually(
        lambda: pods(here, 2)
    )  # the controllers of the cluster delete it, no kubelet confirms
    await here.pod(
        "vllm",
        lambda document: document["metadata"]["name"] != lost and first_container(document).get("ready"),
    )

    assert "deletionTimestamp" in (await here.get("pods", lost))["metadata"]
    (pod,) = other.pods.values()
    assert await here.dns.resolve(f"vllm.{here.name}.svc") == [pod.address]


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
    said = await here.output(sys.executable, "-c", _SAY_HOSTS)
    return {"hosts": said} if {host.split(":")[0] for host in said.split()} == addresses else {}
