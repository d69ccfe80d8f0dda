"""The controller of Deployments, with the garbage collector: pods by the number and the template wanted.

A ReplicaSet is only a name here, the template's hash.
"""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil
from typing import Any

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.server import ApiServer, Request
from tests.support.kubernetes.memory.store import Key

_BY = "kube-controller-manager"
_PERCENT = 100


@dataclass(slots=True)
class Deployments:
    """`reconcile` after each change. `owners`: the uid of the Deployment by the uid of a pod."""

    server: ApiServer
    owners: dict[str, str] = field(default_factory=dict)

    def reconcile(self) -> None:
        store = self.server.store
        self._release()
        uids = {document["metadata"]["uid"] for document in store.select("deployments")}
        for pod in store.select("pods"):
            uid = pod["metadata"]["uid"]
            if uid in self.owners and self.owners[uid] not in uids:
                self._delete(pod)
        for deployment in store.select("deployments"):
            self._reconcile_one(deployment)

    def _release(self) -> None:
        """Leave pods alone whose labels the selector of their Deployment matches no more."""
        store = self.server.store
        selectors = {
            document["metadata"]["uid"]: document["spec"]["selector"]
            for document in store.select("deployments")
        }
        for pod in store.select("pods"):
            uid = pod["metadata"]["uid"]
            selector = selectors.get(self.owners.get(uid, ""))
            labels = pod["metadata"].get("labels") or {}
            if selector is not None and not (selector.get("matchLabels") or {}).items() <= labels.items():
                del self.owners[uid]

    def pods_of(self, deployment: Json) -> list[Json]:
        uid, namespace = deployment["metadata"]["uid"], deployment["metadata"]["namespace"]
        pods = self.server.store.select("pods", namespace)
        return [pod for pod in pods if self.owners.get(pod["metadata"]["uid"]) == uid]

    def _reconcile_one(self, deployment: Json) -> None:
        spec, wanted = deployment["spec"], deployment["spec"]["replicas"]
        running = [pod for pod in self.pods_of(deployment) if _active(pod)]
        of_template = [pod for pod in running if _hash_of(pod) == template_hash(deployment)]
        older = [pod for pod in running if pod not in of_template]
        if spec.get("paused") and older and not of_template:
            self._scale(deployment, older, wanted, _hash_of(older[0]), older[0])
        elif spec["strategy"]["type"] == "Recreate":
            for pod in older:
                self._delete(pod)
            if not [
                pod
                for pod in self.pods_of(deployment)
                if pod in older or "deletionTimestamp" in pod["metadata"]
            ]:
                self._scale(deployment, of_template, wanted, template_hash(deployment))
        else:
            self._roll(deployment, of_template, older)
        self._write_status(deployment)

    def _roll(self, deployment: Json, of_template: list[Json], older: list[Json]) -> None:
        """As many new pods as the surge allows; older ones go once enough others are ready."""
        wanted, rolling = deployment["spec"]["replicas"], deployment["spec"]["strategy"]["rollingUpdate"]
        surge = _count(rolling["maxSurge"], wanted, up=True)
        spare = _count(rolling["maxUnavailable"], wanted, up=False)
        most = wanted + surge if older else wanted
        self._scale(deployment, of_template, min(wanted, most - len(older)), template_hash(deployment))
        running = [pod for pod in self.pods_of(deployment) if _active(pod)]
        new = [pod for pod in running if _hash_of(pod) == template_hash(deployment)]
        least = max(0, wanted - max(spare, 0 if surge else 1))
        may_go = max(0, len(running) - least - sum(not _is_ready(pod) for pod in new))
        for pod in sorted(older, key=_is_ready)[:may_go]:
            self._delete(pod)

    def _scale(
        self, deployment: Json, pods: list[Json], wanted: int, hashed: str, like: Json | None = None
    ) -> None:
        for _ in range(wanted - len(pods)):
            self._create(deployment, hashed, like)
        first_to_go = sorted(pods, key=lambda pod: (_is_ready(pod), pod["spec"].get("nodeName", "")))
        for pod in first_to_go[: max(0, len(pods) - max(0, wanted))]:
            self._delete(pod)

    def _create(self, deployment: Json, hashed: str, like: Json | None) -> None:
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        template: Json = deployment["spec"]["template"]
        given = template.get("metadata") or {}
        body = {
            "metadata": {
                "generateName": f"{name}-{hashed}-",
                "labels": (given.get("labels") or {}) | {"pod-template-hash": hashed},
                "annotations": given.get("annotations") or {},
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "ReplicaSet",
                        "name": f"{name}-{hashed}",
                        "uid": f"{deployment['metadata']['uid']}-{hashed}",
                        "controller": True,
                    }
                ],
            },
            "spec": like["spec"] if like else template["spec"],
        }
        if like:
            body["spec"] = {key: value for key, value in like["spec"].items() if key != "nodeName"}
        path = f"/api/v1/namespaces/{namespace}/pods"
        made: Any = self.server.handle(
            Request(method="POST", path=path, content=json.dumps(body).encode(), by=_BY)
        )
        self.owners[made["metadata"]["uid"]] = deployment["metadata"]["uid"]

    def _delete(self, pod: Json) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            self.server.handle(Request(method="DELETE", path=path, by=_BY))

    def _write_status(self, deployment: Json) -> None:
        key: Key = ("deployments", deployment["metadata"]["namespace"], deployment["metadata"]["name"])
        running = [pod for pod in self.pods_of(deployment) if _active(pod)]
        ready = sum(map(_is_ready, running))
        counts = {
            "replicas": len(running),
            "updatedReplicas": sum(_hash_of(pod) == template_hash(deployment) for pod in running),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, deployment["spec"]["replicas"] - ready),
        }
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            **{name: count for name, count in counts.items() if count},
        }
        self.server.store.put(key, {**deployment, "status": status}, _BY)


def template_hash(deployment: Json) -> str:
    """Return the hash of the template's content, as the pods of its ReplicaSet have it in a label."""
    template = deployment["spec"]["template"]
    return sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _hash_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"]["pod-template-hash"])


def _active(pod: Json) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in {
        "Failed",
        "Succeeded",
    }


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _count(share: str | int, wanted: int, *, up: bool) -> int:
    if isinstance(share, int):
        return share
    exact = int(share.rstrip("%")) * wanted / _PERCENT
    return ceil(exact) if up else int(exact)
