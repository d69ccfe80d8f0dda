"""Pods on their nodes, as a kubelet runs them: the container is what a test lets it be."""

from dataclasses import dataclass, field
from typing import Protocol

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.server import ApiServer
from tests.support.kubernetes.memory.watches import Later

_BACK_OFF_S = 10.0  # before the second restart; doubles to five minutes
_LONGEST_BACK_OFF_S = 300.0
_BY = "kubelet"


class Processes(Protocol):
    """What runs in the containers."""

    def started(self, pod: "RunningPod") -> None:
        """It runs; the test lets it be ready, or exit."""

    def ended(self, pod: "RunningPod", *, asked: bool) -> None:
        """It runs no more. `asked`: by the deletion of its pod."""


@dataclass(eq=False, slots=True, kw_only=True)
class RunningPod:
    """A pod that has a node. `runs`: its process does."""

    document: Json  # as the kubelet got it
    address: str
    server: ApiServer
    later: Later
    processes: Processes
    runs: bool = False
    ready: bool = False
    over: bool = False  # for the kubelet
    restarts: int = 0
    log: list[str] = field(default_factory=list)
    last_log: list[str] = field(default_factory=list)
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json = field(default_factory=dict)
    failure: Json = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])

    @property
    def node(self) -> str:
        return str(self.document["spec"]["nodeName"])

    def start(self) -> None:
        """Begin the container, also again."""
        if self.over:
            return
        self.runs, self.state = True, {"running": {}}
        self.last_log, self.log = self.log, []
        self.write()
        self.processes.started(self)

    def become_ready(self, *, ready: bool = True) -> None:
        if self.runs and self.ready is not ready:
            self.ready = ready
            self.write()

    def exit(self, code: int = 1, reason: str = "Error") -> None:
        """The process ends by itself or is killed; the kubelet starts it again, later each time."""
        if not self.runs:
            return
        ended = {"terminated": {"exitCode": code, "reason": reason}}
        self._end(asked=False)
        self.last = ended
        waits_s = min(_BACK_OFF_S * 2 ** (self.restarts - 1), _LONGEST_BACK_OFF_S) if self.restarts else 0.5
        self.state = {"waiting": {"reason": "CrashLoopBackOff"}} if self.restarts else ended
        self.write()
        self.later(waits_s, self._restart)

    def _restart(self) -> None:
        if not self.over:
            self.restarts += 1
            self.start()

    def fail(self, reason: str, message: str) -> None:
        """The node ends the pod; it stays in the API."""
        if self.over:
            return
        self._end(asked=False)
        self.over, self.failure = True, {"phase": "Failed", "reason": reason, "message": message}
        self.write()

    def delete(self, after_s: float) -> None:
        """End the process and confirm the deletion."""
        if self.over:
            return
        self._end(asked=True)
        self.over = True
        self.later(after_s, self._confirm)

    def vanish(self) -> None:
        """Its node is lost: the API server learns nothing."""
        self._end(asked=False)
        self.over = True

    def _end(self, *, asked: bool) -> None:
        if self.runs:
            self.runs = self.ready = False
            self.processes.ended(self, asked=asked)

    def _confirm(self) -> None:
        key = ("pods", self.document["metadata"]["namespace"], self.name)
        stored = self.server.store.objects.get(key)
        if stored is not None and stored["metadata"]["uid"] == self.uid:
            self.server.store.remove(key, _BY)

    def write(self) -> None:
        """Report the status."""
        namespace = self.document["metadata"]["namespace"]
        stored = self.server.store.get("pods", namespace, self.name)
        if stored is None or stored["metadata"]["uid"] != self.uid:
            return
        self.server.store.put(("pods", namespace, self.name), {**stored, "status": self.status()}, _BY)

    def status(self) -> Json:
        container = self.document["spec"]["containers"][0]
        holds = {
            "Initialized": True,
            "Ready": self.ready,
            "ContainersReady": self.ready,
            "PodScheduled": True,
        }
        has_run = self.runs or self.last or self.restarts
        return {
            "phase": "Running" if has_run else "Pending",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [{"type": kind, "status": str(value)} for kind, value in holds.items()],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "state": self.state,
                    "lastState": self.last,
                    "ready": self.ready,
                    "restartCount": self.restarts,
                }
            ],
            **self.failure,
        }
