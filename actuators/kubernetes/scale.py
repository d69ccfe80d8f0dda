"""Scale a Deployment down to no pods and remember how many it had."""

import asyncio

from actuators.kubernetes import client as kubernetes
from actuators.kubernetes.client import KubernetesClient
from actuators.kubernetes.discovery import find_pods
from actuators.kubernetes.labels import EPOCH, REPLICAS
from actuators.kubernetes.workload import Workload
from agent.domain.errors import ActError
from agent.domain.ports import Site

_POLL_S = 0.5
_GONE_WITHIN_S = 120.0
"""Beyond the grace period of the pods: the kubelet frees the GPUs only when the last process has ended."""


async def scale_down(client: KubernetesClient, site: Site, workload: Workload) -> None:
    """Return when no pod of the Deployment exists any more. Idempotent."""
    if workload.replicas:
        metadata = {
            "resourceVersion": workload.version,
            "annotations": {REPLICAS: str(workload.replicas)},
            "labels": {EPOCH: str(site.epoch)} if workload.ours else {},
        }
        await client.patch(
            kubernetes.DEPLOYMENT, workload.name, {"metadata": metadata, "spec": {"replicas": 0}}
        )
    await wait_until_gone(client, workload)


async def wait_until_gone(client: KubernetesClient, workload: Workload) -> None:
    """Return when no pod of the Deployment exists any more. Raises ActError."""
    grace_s = float(workload.template["spec"].get("terminationGracePeriodSeconds", 30))
    limit_s = grace_s + _GONE_WITHIN_S
    try:
        async with asyncio.timeout(limit_s):
            while await find_pods(client, workload):  # noqa: ASYNC110 - the condition is a call
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        why = f"pods of {workload.name} still exist {limit_s:g} s after they were to end: `kubectl get pods`"
        raise ActError(why, external=True) from error
