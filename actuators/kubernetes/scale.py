"""Scale a workload down to no pods and remember how many it had."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from flettner.actuators.kubernetes.discovery import find_pods
from flettner.actuators.kubernetes.labels import EPOCH, REPLICAS
from flettner.actuators.kubernetes.pods import PodFault
from flettner.actuators.kubernetes.statefulset import count_turns
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes.client import KubernetesClient, Reader, patiently
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import MissingError
from flettner.primitives.waiting import poll_until

_POLL_S = 0.5
_GONE_WITHIN_S = 120.0
"""Beyond the grace period of the pods: the kubelet frees the GPUs only when the last process has ended."""

SCALED_BY_FLETTNER = PodFault("was scaled to 0 by flettner", external=True)


async def scale_down(client: KubernetesClient, site: Site, workload: Workload) -> None:
    """Return when no pod of the workload runs any more. Idempotent; without error if it was removed."""

    async def to_none(found: Json) -> Json | None:
        replicas = found["spec"].get("replicas", 1)
        if not replicas:
            return None
        metadata = {
            "resourceVersion": found["metadata"]["resourceVersion"],
            "annotations": {REPLICAS: str(Workload.parse(found).usual_replicas)},
            "labels": {EPOCH: str(site.epoch)} if workload.ours else {},
        }
        return {"metadata": metadata, "spec": {"replicas": 0}}

    with suppress(MissingError):
        await client.update(workload.resource, workload.name, to_none)
    await wait_until_gone(client, workload)


def fault_of_none(annotations: Mapping[str, str]) -> PodFault:
    """Who scaled a workload down to no pods: flettner leaves an annotation with it."""
    if REPLICAS in annotations:
        return SCALED_BY_FLETTNER
    return PodFault("was scaled to 0 by a third party", external=True)


async def wait_until_gone(client: KubernetesClient, workload: Workload) -> None:
    """Return when no pod of the workload runs any more. Raises ActError.

    Evicted pods are over, and a Deployment that is scaled to 0 does not delete them.
    """
    grace_s = float(workload.template["spec"].get("terminationGracePeriodSeconds", 30))
    limit_s = grace_s * count_turns(workload) + _GONE_WITHIN_S

    async def all_over(reader: Reader) -> bool:
        return all(pod.over for pod in await patiently(lambda: find_pods(reader, workload)))

    async def are_gone() -> bool:
        return await all_over(client.cached) and await all_over(client)

    try:
        async with asyncio.timeout(limit_s):
            await poll_until(are_gone, _POLL_S)
    except TimeoutError as error:
        why = f"pods of {workload.name} still exist {limit_s:g} s after they were to end: `kubectl get pods`"
        raise ActError(why, external=True) from error
