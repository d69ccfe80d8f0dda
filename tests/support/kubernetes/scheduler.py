"""A stand-in for kube-scheduler: requests of resources, node selectors and taints, without preemption."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import aiohttp

from tests.support.kubernetes.api import Api, ApiError, Json
from tests.support.kubernetes.events import now, record

_RETRY_S = 0.5
_FACTORS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def place(pod: Json, pods: Iterable[Json], nodes: Iterable[Json]) -> tuple[str, str]:
    """The name of the node for a pod; if none fits, an empty name and kube-scheduler's message."""
    bound = [*pods]
    reasons: Counter[str] = Counter()
    nodes = [*nodes]
    for node in nodes:
        why = _unfit(pod, bound, node)
        if not why:
            return str(node["metadata"]["name"]), ""
        reasons.update(why)
    summary = f"0/{len(nodes)} nodes are available"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    short = sum(count for reason, count in reasons.items() if reason.startswith("Insufficient"))
    victims = {"No preemption victims found for incoming pod": short}
    victims["Preemption is not helpful for scheduling"] = len(nodes) - short
    helps = ", ".join(sorted(f"{count} {what}" for what, count in victims.items() if count > 0))
    return "", f"{summary}: {listed}. preemption: {summary}: {helps}."  # as of 1.24


def _unfit(pod: Json, pods: list[Json], node: Json) -> list[str]:
    """Like kube-scheduler: the first filter that refuses speaks, with all of its reasons."""
    for taint in node["spec"].get("taints", ()):
        if taint["effect"] != "PreferNoSchedule" and not _tolerates(pod, taint):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    labels = node["metadata"].get("labels", {})
    if not pod["spec"].get("nodeSelector", {}).items() <= labels.items():
        return ["node(s) didn't match Pod's node affinity/selector"]
    free = {name: quantity(text) for name, text in node["status"]["allocatable"].items()}
    for other in pods:
        if _occupies(other, node):
            free = {name: left - requests(other).get(name, 0.0) for name, left in free.items()}
    return [f"Insufficient {name}" for name, wanted in requests(pod).items() if wanted > free.get(name, 0.0)]


def _tolerates(pod: Json, taint: Json) -> bool:
    tolerations: list[dict[str, str]] = pod["spec"].get("tolerations", [])
    return any(
        all(toleration.get(key, taint[key]) == taint[key] for key in ("key", "effect"))
        for toleration in tolerations
    )


def _occupies(pod: Json, node: Json) -> bool:
    """A terminating pod occupies its GPUs until it is gone."""
    here = pod["spec"].get("nodeName") == node["metadata"]["name"]
    return here and pod["status"].get("phase") not in {"Succeeded", "Failed"}


def requests(pod: Json) -> dict[str, float]:
    """What all containers of the pod request of each resource."""
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        for name, text in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, 0.0) + quantity(text)
    return total


def quantity(text: str) -> float:
    """Kubernetes' notation: "500m", "16Gi", "4"."""
    for suffix, factor in (_BINARY | _FACTORS).items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


class Scheduler:
    """Binds the pods of one namespace to nodes with the label `namespace`, or to nodes without it."""

    def __init__(self, api: Api, namespace: str, label: str) -> None:
        self._api, self._namespace, self._label = api, namespace, label
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def run(self) -> None:
        """Look every `_RETRY_S`: a node may be new, too."""
        while True:
            with suppress(aiohttp.ClientError, ApiError, TimeoutError):
                await self._pass()
            await asyncio.sleep(_RETRY_S)

    async def _pass(self) -> None:
        pods: list[Json] = (await self._api.get(self._path))["items"]
        waiting = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]
        if not waiting:
            return
        nodes = [node for node in (await self._api.get("/api/v1/nodes"))["items"] if self._serves(node)]
        for pod in sorted(waiting, key=lambda candidate: str(candidate["metadata"]["creationTimestamp"])):
            name, message = place(pod, pods, nodes)
            if name:
                await self._bind(pod, name)
            else:
                await self._refuse(pod, message)

    def _serves(self, node: Json) -> bool:
        labels: dict[str, str] = node["metadata"].get("labels", {})
        return labels.get(self._label, self._namespace) == self._namespace

    async def _bind(self, pod: Json, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        name = pod["metadata"]["name"]
        await self._api.create(f"{self._path}/{name}/binding", {"metadata": {"name": name}, "target": target})
        pod["spec"]["nodeName"] = node  # in the list of this pass, for the next pod
        message = f"Successfully assigned {self._namespace}/{name} to {node}"
        await record(self._api, pod, "default-scheduler", "Scheduled", message, warns=False)

    async def _refuse(self, pod: Json, message: str) -> None:
        conditions = pod["status"].get("conditions", ())
        if any(entry["type"] == "PodScheduled" and entry.get("message") == message for entry in conditions):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": now(),
        }
        path = f"{self._path}/{pod['metadata']['name']}/status"
        await self._api.patch(path, {"status": {"conditions": [condition]}})
        await record(self._api, pod, "default-scheduler", "FailedScheduling", message)
