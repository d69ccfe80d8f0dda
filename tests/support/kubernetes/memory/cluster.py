"""Nodes, scheduler and controllers around the API server in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from random import Random

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.deployments import Deployments
from tests.support.kubernetes.memory.pods import Processes, RunningPod
from tests.support.kubernetes.memory.server import ApiServer
from tests.support.kubernetes.memory.store import Change
from tests.support.kubernetes.memory.watches import Later
from tests.support.kubernetes.scheduler import place

_REACTS_S = (0.02, 0.2)  # a controller, to a change
_STARTS_S = (0.1, 0.5)  # a container, once its pod has a node
_STOPS_S = (0.1, 0.8)  # a pod, from the end of its process to the confirmed deletion
_UNREACHABLE_S = 10.0  # from the loss of a node to the deletion of its pods; 300 with default settings
NODE_REMOVED_S = 30.0  # from the loss of a node to its removal by the cloud's controller


@dataclass(eq=False, slots=True, kw_only=True)
class MemoryCluster:
    """`later`: calls back after some seconds. `processes`: what the containers run."""

    now: Callable[[], datetime]
    later: Later
    random: Random
    processes: Processes
    server: ApiServer = field(init=False)
    deployments: Deployments = field(init=False)
    pods: dict[str, RunningPod] = field(default_factory=dict)  # by uid
    _due: bool = False
    _addresses: "count[int]" = field(default_factory=lambda: count(2))

    def __post_init__(self) -> None:
        self.server = ApiServer(now=self.now, random=self.random, log=self._log)
        self.deployments = Deployments(self.server)
        self.server.store.listeners.append(self._changed)

    def add_node(self, name: str, gpus: int) -> None:
        room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        document: Json = {
            "metadata": {"name": name, "uid": name},
            "spec": {},
            "status": {"allocatable": room | ({"nvidia.com/gpu": str(gpus)} if gpus else {})},
        }
        self.server.store.put(("nodes", "", name), document)

    def lose_node(self, name: str) -> None:
        """It loses its power: its pods are deleted later, and are gone when the node is removed."""
        lost = [pod for pod in self.pods.values() if pod.node == name and not pod.over]
        for pod in lost:
            pod.vanish()
            self.later(2.0, pod.write)  # not ready, says the controller of nodes
        node = self.server.store.get("nodes", "", name)
        if node is not None:
            taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
            self.server.store.put(("nodes", "", name), {**node, "spec": {"taints": [taint]}})
        self.later(_UNREACHABLE_S, lambda: self._delete(lost))
        self.later(NODE_REMOVED_S, lambda: self._remove(name))

    def _delete(self, pods: list[RunningPod]) -> None:
        for pod in pods:
            stored = self.server.store.get("pods", pod.document["metadata"]["namespace"], pod.name)
            if stored is not None and stored["metadata"]["uid"] == pod.uid:
                self.deployments._delete(stored)

    def _remove(self, name: str) -> None:
        for pod in [pod for pod in self.pods.values() if pod.node == name]:
            pod._confirm()
        self.server.store.remove(("nodes", "", name))

    def running(self, deployment: Json) -> list[RunningPod]:
        """Return the pods of a Deployment that have a node, also those that end."""
        documents = self.deployments.pods_of(deployment)
        return [
            self.pods[document["metadata"]["uid"]]
            for document in documents
            if document["metadata"]["uid"] in self.pods
        ]

    def _changed(self, change: Change) -> None:
        if change.key[0] in {"deployments", "pods", "nodes"} and not self._due:
            self._due = True
            self.later(self.random.uniform(*_REACTS_S), self._react)

    def _react(self) -> None:
        self._due = False
        self.deployments.reconcile()
        self._schedule()
        self._run_pods()

    def _schedule(self) -> None:
        store = self.server.store
        pods, nodes = store.select("pods"), store.select("nodes")
        waiting = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]
        for pod in sorted(waiting, key=lambda candidate: str(candidate["metadata"]["creationTimestamp"])):
            key = ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
            node, message = place(pod, store.select("pods"), nodes)
            if node:
                scheduled: Json = {
                    "phase": "Pending",
                    "conditions": [{"type": "PodScheduled", "status": "True"}],
                }
                store.put(key, {**pod, "spec": pod["spec"] | {"nodeName": node}, "status": scheduled})
            else:
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                status = pod["status"] | {"conditions": [condition | {"message": message}]}
                store.put(key, {**pod, "status": status})

    def _run_pods(self) -> None:
        """As the kubelets: start the pods of their nodes, end those that are deleted."""
        there = {pod["metadata"]["uid"]: pod for pod in self.server.store.select("pods")}
        for uid, document in there.items():
            ends, running = "deletionTimestamp" in document["metadata"], self.pods.get(uid)
            if running is None and document["spec"].get("nodeName") and not ends:
                self._begin(document)
            elif running is not None and ends:
                running.delete(self.random.uniform(*_STOPS_S))
        for uid in self.pods.keys() - there.keys():  # removed without a grace period
            self.pods.pop(uid).delete(0.0)

    def _begin(self, document: Json) -> None:
        number = next(self._addresses)
        pod = RunningPod(
            document=document,
            address=f"10.0.{number >> 8}.{number & 255}",
            server=self.server,
            later=self.later,
            processes=self.processes,
        )
        self.pods[pod.uid] = pod
        pod.write()
        self.later(self.random.uniform(*_STARTS_S), pod.start)

    def _log(self, namespace: str, name: str, container: str, previous: bool) -> str:
        del namespace
        pod = next((candidate for candidate in self.pods.values() if candidate.name == name), None)
        if pod is None:
            raise LookupError(f'pod "{name}" not found')
        if previous and not pod.restarts:
            raise LookupError(f'previous terminated container "{container}" in pod "{name}" not found')
        return "".join(f"{line}\n" for line in (pod.last_log if previous else pod.log))
