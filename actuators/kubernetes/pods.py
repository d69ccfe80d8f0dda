"""The pods of one server: their addresses, and why they do not serve.

A cause is named from the pod's status, its events and the last lines of its log.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from flettner.actuators.host.process_group import how_it_ended
from flettner.actuators.host.server_log import cause_in
from flettner.actuators.vllm.fault import Fault
from flettner.clients.kubernetes.documents import Json
from flettner.primitives.address import Address

_IMAGE_ERRORS = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
"""`ErrImagePull` is not among them: the kubelet tries again, and only then waits (ImagePullBackOff)."""

_CONFIG_ERRORS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_BACK_OFF = "CrashLoopBackOff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    name: str
    uid: str
    ip: str
    ready: bool
    ending: bool  # deletionTimestamp is set
    restarts: int
    created: datetime
    container: str
    labels: Mapping[str, str]
    status: Json = field(repr=False)  # of the pod
    own: Json = field(repr=False)  # of its vLLM container

    @classmethod
    def parse(cls, document: Json, container: str) -> Self:
        metadata, status = document["metadata"], document.get("status") or {}
        conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
        own: Json = next(
            (reported for reported in status.get("containerStatuses") or () if reported["name"] == container),
            {},
        )
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            ip=status.get("podIP", ""),
            ready=conditions.get("Ready") == "True",
            ending="deletionTimestamp" in metadata,
            restarts=own.get("restartCount", 0),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            container=container,
            labels=metadata.get("labels") or {},
            status=status,
            own=own,
        )

    @property
    def over(self) -> bool:
        """Whether all its containers have ended for good; an evicted pod stays so until it is deleted."""
        return self.status.get("phase") in {"Failed", "Succeeded"}

    @property
    def ordinal(self) -> int:
        """Its number in a StatefulSet; -1: it has none."""
        name = self.labels.get("statefulset.kubernetes.io/pod-name", "")
        return int(name.rpartition("-")[2]) if name else -1

    @property
    def active(self) -> bool:
        """Whether it runs, or will."""
        return not self.ending and not self.over

    def address(self, port: int) -> str:
        return str(Address(self.ip, port))

    @property
    def unschedulable(self) -> str:
        """The scheduler's reason why no node takes it; empty: one does, or may."""
        for condition in self.status.get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message") or condition.get("reason") or "no node takes it")
        return ""

    def fault(self, log: Sequence[str] = ()) -> Fault | None:
        """Return why it cannot serve, once that is certain; None: it serves, or may yet."""
        if self.status.get("phase") == "Failed" and self.status.get("reason"):
            return _ended_by_cluster(self.name, self.status)
        if fault := _creation_fault(self.own, "its"):
            return fault
        if ended := _last_end(self.own):
            return _describe_end(ended, log)
        return self._fault_of_others()

    def _fault_of_others(self) -> Fault | None:
        """Return why an init container or a sidecar keeps the server from its start, or the pod from traffic.

        The kubelet starts a container that failed once again at once: only its back-off is certain.
        """
        init = self.status.get("initContainerStatuses") or ()
        beside = (
            reported
            for reported in self.status.get("containerStatuses") or ()
            if reported["name"] != self.container
        )
        for kind, reported in (
            *(("init container", reported) for reported in init),
            *(("container", reported) for reported in beside),
        ):
            whose = f"the {kind} {reported['name']}:"
            if fault := _creation_fault(reported, whose):
                return fault
            ended = _last_end(reported)
            if ended and _waiting(reported)[0] == _BACK_OFF:
                why = f"{whose} it ends with code {ended.get('exitCode', 0)} again and again: see its log"
                return Fault(why, external=True)
        return None


def _waiting(container: Json) -> tuple[str, str]:
    """Return why the container does not run yet, by reason and message; empty: it is not said."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    return str(waiting.get("reason") or ""), str(waiting.get("message") or "")


def _last_end(container: Json) -> Json | None:
    """Return the last end of the container, whether it was started again or not."""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        if terminated := state.get("terminated"):
            return dict(terminated)
    return None


def _creation_fault(container: Json, whose: str) -> Fault | None:
    reason, message = _waiting(container)
    if reason in _IMAGE_ERRORS:
        image = container.get("image", "")
        return Fault(f"{whose} image {image} cannot be pulled: {message or reason}", external=True)
    if reason in _CONFIG_ERRORS:
        return Fault(f"{whose} container cannot be created: {message or reason}", external=True)
    return None


def _ended_by_cluster(name: str, status: Json) -> Fault:
    reason, message = status["reason"], str(status.get("message") or "")
    what = {
        "Evicted": "was evicted from its node",
        "NodeLost": "is lost with its node",
        "Preempting": "was preempted by a pod of higher priority",
        "Terminated": "was ended by the cluster",
        "Shutdown": "was ended by a shutdown of its node",
    }.get(reason, f"failed ({reason})")
    return Fault(f"the pod {name} {what}" + (f": {message}" if message else ""), external=True)


def _describe_end(ended: Json, log: Sequence[str]) -> Fault:
    cause = cause_in(log)
    if ended.get("reason") == "OOMKilled":
        return Fault(
            "was killed by the kernel, out of memory: it needed more than the limit of its container"
        )
    how = how_it_ended(int(ended.get("exitCode", 0)))
    return Fault(f"{how}: {cause}" if cause else how)


def newest_first(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda pod: pod.created, reverse=True)
