"""The Deployment of Envoys of the chart, on the stand-in nodes."""

import sys

from tests.support.helm import manifests
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.namespace import Namespace

PROXY = "flettner-proxy"
_MANIFESTS = manifests({"mode": "approve"})


def of_chart(kind: str, name: str) -> Json:
    """The object that the chart renders."""
    return next(
        manifest
        for manifest in _MANIFESTS
        if manifest["kind"] == kind and manifest["metadata"]["name"] == name
    )


async def create_proxy(
    here: Namespace, *, replicas: int = 2, leave_s: float = 2.0, cpu: str = "100m"
) -> None:
    """Create it with its documented rights. Its pods get ready once a route is published.

    Pods of the rig hold no token, so that they get a kubeconfig. They see all processes of this host, and an
    Envoy is found by its command line, so that each has a folder of its own name. A node has 64 `cpu`.
    """
    user = await here.user(PROXY, *of_chart("Role", PROXY)["rules"])
    deployment = of_chart("Deployment", PROXY)
    deployment["spec"]["replicas"] = replicas
    pod = deployment["spec"]["template"]["spec"]
    [envoy] = pod["containers"]
    envoy["command"] = [sys.executable, *envoy["command"][1:]]
    envoy["args"] += ["--kubeconfig", str(user), "--leave-s", str(leave_s)]
    envoy["args"] += ["--state-dir", f"{envoy['volumeMounts'][0]['mountPath']}/$(POD)"]
    envoy["env"] = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    envoy["resources"]["requests"]["cpu"] = cpu
    envoy["readinessProbe"]["periodSeconds"] = 1
    await here.create("deployments", deployment)


async def proxy_pods(here: Namespace) -> list[Json]:
    """The pods that have an address and are not being deleted."""
    listed = await here.api.get(here.path("pods"), labelSelector=f"app.kubernetes.io/name={PROXY}")
    return [
        pod
        for pod in listed["items"]
        if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
    ]
