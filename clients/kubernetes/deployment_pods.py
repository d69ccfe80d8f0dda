"""The pods of one Deployment, by its own selector: those that serve, and those that finish their requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import AwayError, MissingError


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPod:
    """A pod with an address. `ready`: by its probe, and not being deleted: it gets new connections."""

    name: str
    ip: str
    ready: bool


@dataclass(slots=True, kw_only=True)
class DeploymentPods:
    client: KubernetesClient
    deployment: str
    _last: tuple[FoundPod, ...] | None = field(default=None, init=False)

    async def find(self, *, stale: bool = False) -> tuple[FoundPod, ...]:
        """Return the running pods, without a call; `stale`: those found last while the API server is away.

        Raises ActError, MissingError without such a Deployment.
        """
        try:
            listed = await self.client.cached.find(kubernetes.POD, await self._selector())
        except AwayError:
            if stale and self._last is not None:
                return self._last
            raise
        pods = (_parse(document) for document in listed)
        self._last = tuple(pod for pod in pods if pod is not None)
        return self._last

    async def _selector(self) -> Mapping[str, str]:
        document = await self.client.cached.get(kubernetes.DEPLOYMENT, self.deployment)
        if document is None:
            raise MissingError(f"there is no Deployment {self.deployment}", external=True)
        selector = document["spec"]["selector"]
        labels: Mapping[str, str] = selector.get("matchLabels") or {}
        if selector.get("matchExpressions") or not labels:
            raise ActError(f"the selector of the Deployment {self.deployment} must have matchLabels only")
        return labels


def _parse(document: Json) -> FoundPod | None:
    """Return None for a pod that has no address or has ended."""
    status = document.get("status") or {}
    if not status.get("podIP") or status.get("phase") in {"Failed", "Succeeded"}:
        return None
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    ready = conditions.get("Ready") == "True" and "deletionTimestamp" not in document["metadata"]
    return FoundPod(name=document["metadata"]["name"], ip=status["podIP"], ready=ready)
