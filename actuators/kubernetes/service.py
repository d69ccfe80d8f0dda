"""The Service of a server: proxies and sensors find its pods by this name, so it is there while it serves."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from flettner.actuators.kubernetes.discovery import ServerEntry
from flettner.actuators.kubernetes.labels import (
    DEPLOYMENT,
    LIKE,
    SERVER,
    object_name,
    server_labels,
    service_labels,
)
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.ports import Site
from flettner.agent.retrying import retry
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import ConflictError

log = structlog.get_logger(__name__)

READY_ONLY: Final = {"publishNotReadyAddresses": False}
"""In the spec of a Service whose name resolves to pods that are ready, and to no other."""

_RETRY_S = 2.0  # while the API server is away


def make_service(site: Site, server: str, like: str, workload: Workload) -> Json:
    """Return the headless Service of a server: its name resolves to the pods of `workload` that are ready.

    That of a green with one pod resolves to it in any state. A proxy tries a refused request again on blue,
    but answers it with an error where the name has no address. With more pods, a second try may meet the same
    pod; one that is not ready gets none.
    """
    port = workload.serve.port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": object_name(site, server),
            "labels": server_labels(site, server),
            "annotations": {SERVER: server, DEPLOYMENT: workload.name, LIKE: like},
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": workload.ours and workload.usual_replicas == 1,
            "selector": service_labels(site, server) if workload.ours else dict(workload.selector),
            "ports": [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


async def create_service(client: KubernetesClient, site: Site, entry: ServerEntry) -> ServerEntry:
    """Return the server with its Service, which may be there for a Deployment that a person has removed."""
    body = make_service(site, entry.server, entry.like, entry.workload)
    name, spec = body["metadata"]["name"], body["spec"]
    try:
        await client.create(kubernetes.SERVICE, body)
    except ConflictError:
        metadata = {"annotations": body["metadata"]["annotations"]}

        async def to_wanted(document: Json) -> Json:
            before = dict.fromkeys(document["spec"].get("selector") or {})
            return {"metadata": metadata, "spec": {**spec, "selector": {**before, **spec["selector"]}}}

        await client.update(kubernetes.SERVICE, name, to_wanted)
    return replace(entry, service=name)


async def keep_service(client: KubernetesClient, name: str, restore: Callable[[], Awaitable[None]]) -> None:
    """Call `restore` each time that a third party has deleted the Service; until cancelled."""
    async for _ in client.cached.changes(kubernetes.SERVICE, name=name):
        restoring = AsyncRetrying(retry=retry_if_exception_type(ActError), wait=wait_fixed(_RETRY_S))
        await retry(restoring, partial(_restore_missing, client, name, restore))


async def _restore_missing(
    client: KubernetesClient, name: str, restore: Callable[[], Awaitable[None]]
) -> None:
    with suppress(FencedError):  # it is a newer daemon's to create
        if await client.cached.get(kubernetes.SERVICE, name) is None:
            await restore()
