"""The invariants of histories on Kubernetes, besides those of all histories."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from tests.simulation.kubernetes.backends import Backend, parse_setting
from tests.simulation.kubernetes.manifest import args_of
from tests.simulation.kubernetes.world import DNS_S, FLETTNER, NAMESPACE, KubernetesWorld
from tests.simulation.observer import KNOWN_S, SHUT_OUT_S, UNDECIDED, Observer, Written
from tests.simulation.world import Process
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.store import Change

HARMED_S = 90.0  # for how long a fault of pods may cost requests: the cluster heals
HOUR_S = 3600.0
MOST_WRITES = 20  # to the Deployment of an operator, in an hour
WRITES = {"retire": 3, "launch": 2, "stop": 1}
"""A retirement: scale down, change, scale down again where that failed; and one for each further pod."""

OURS = "flettner.dev/"


@dataclass(repr=False, slots=True, kw_only=True)
class KubernetesObserver(Observer):
    """`replicas`: how many pods people want of each of their Deployments. `stopped`: they scaled these to 0,
    so that only the number of a copy may be known. `copies`: the numbers of flettner's Deployments.
    `api_fails`: whether calls of the API server fail, or take long."""

    replicas: dict[str, int]
    api_fails: Callable[[], bool]
    stopped: set[str] = field(default_factory=set)
    copies: set[int] = field(default_factory=set)
    reverted: bool = False
    harmed_s: float = -1e9
    sent_s: dict[str, float] = field(default_factory=dict)  # when the proxy could last send to a pod, by uid
    writes: dict[str, list[float]] = field(default_factory=dict)  # to the Deployments of operators
    asked: set[tuple[str, str]] = field(default_factory=set)
    """What a daemon made that had asked for it before it was paused; it may take that away again."""
    promoted: bool = False  # a rollout was, or is being
    needed: int = 0  # writes to them that the effects so far may take

    @property
    def cluster_world(self) -> KubernetesWorld:
        return cast("KubernetesWorld", self.world)

    def harm(self) -> None:
        """Pods are broken from outside, or may be from now on."""
        self.harmed_s = self.world.at_s

    @property
    def harmed(self) -> bool:
        return self.world.at_s - self.harmed_s < HARMED_S

    def edited(self, document: Json) -> None:
        """A person writes flags, which are then allowed."""
        setting = parse_setting(document["spec"]["template"]["spec"]["containers"][0])
        self.allowed.add(frozenset(setting.items()))

    def _has_begun(self, process: Process) -> bool:
        """Not one whose pod the kubelet has just started again."""
        again = any(backend.restarted for backend in self.cluster_world.behind(process.address))
        just = again and self.world.at_s - process.since_s < KNOWN_S
        return Observer._has_begun(self, process) and not just

    def wrote(self, entry: Written, epoch: int) -> None:
        Observer.wrote(self, entry, epoch)
        self.promoted |= self.phase == "promoting"

    # Requests.

    def refused(self, name: str) -> None:
        """Check a request for which the proxy finds no pod."""
        planned = self.swaps and (
            self.phase in UNDECIDED | {"rolling_back", "restoring"} or self._is_new_in_dns(name)
        )
        able = self._able()
        if not planned and not self.harmed and able and self.world.at_s - self.handed_s > HARMED_S:
            self.wrong(f"1: a request to {name} finds no pod, and {len(able)} could serve it")

    def _is_new_in_dns(self, name: str) -> bool:
        """Whether its name may still resolve to the pods before a swap, whose outage lasts as long."""
        process = self.world.servers.get(name)
        return process is not None and self.world.at_s - process.since_s < DNS_S[1]

    def _nobody_serves(self, what: str, name: str) -> None:
        if not self.harmed:
            Observer._nobody_serves(self, what, name)

    def _able(self) -> list[Backend]:
        backends = self.cluster_world.backends.by_uid.values()
        return [backend for backend in backends if backend.status == "healthy"]

    def backend_changed(self, backend: Backend) -> None:
        ended = backend.status == "exited" and not self.cluster_world.epoch_of(backend)
        if ended or backend.status in {"hung", "wedged"}:
            self.harm()

    def ended_backend(self, backend: Backend, requests: int, epoch: int) -> None:
        """Check the end of a pod that flettner asked for."""
        if not epoch or not backend.answers:
            return
        world = self.cluster_world
        if self.harmed or world.at_s - self.handed_s < HARMED_S:
            self.excused += requests
            return
        if world.sends_to(backend):
            self.wrong(f"1: {backend.pod.name} is ended while the proxy sends requests to it")
        waited_s = world.at_s - self.sent_s.get(backend.pod.uid, -1e9)
        if requests and waited_s < self.drain_s - 2.0:
            self.wrong(f"2: {backend.pod.name} is ended {waited_s:.1f} s after its last share, requests open")

    def second(self) -> None:
        if self.api_fails() and self._lacks_service():
            self.faulted_s = self.world.at_s  # nothing can restore what a third party deleted
        Observer.second(self)
        if self.harmed and not self._able():
            self.harm()  # it is not over
        for name in self.world.in_force():
            for backend in self.cluster_world.resolved(name):
                self.sent_s[backend.pod.uid] = self.world.at_s

    def _lacks_service(self) -> bool:
        """Whether a third party has deleted the Service of a server with a share."""
        world = self.cluster_world
        names = [(world.split.addresses.get(name, "") if world.split else "") for name in world.in_force()]
        store = world.cluster.server.store
        return any(store.get("services", NAMESPACE, name.partition(".")[0]) is None for name in names)

    # Writes.

    def performs(self, kind: str, name: str) -> None:
        """Check an effect before it is performed; the fence is checked at each write."""
        theirs = name in self.replicas or name not in self.world.servers
        further = max(self.replicas.values()) - 1 if kind == "retire" else 0
        self.needed += WRITES.get(kind, 0) + further if kind == "retire" or theirs else 0
        Observer.called(self, self.newest, kind, name, None)

    def wrote_object(self, change: Change) -> None:
        """Check a write of flettner's."""
        epoch, (plural, _, name) = int(change.by.removeprefix(FLETTNER)), change.key
        if change.type == "ADDED" and self.world.at_s - self.woke_s < SHUT_OUT_S:
            self.asked.add((plural, name))
        late = epoch < self.newest and self.world.at_s - self.newest_s > SHUT_OUT_S
        if late and (plural, name) not in self.asked:
            self.wrong(
                f"5: {plural} {name} is written by a daemon of epoch {epoch} after one of {self.newest} acted"
            )
        if plural == "deployments" and change.type != "DELETED":
            self.starts(parse_setting(change.document["spec"]["template"]["spec"]["containers"][0]))
            self.copies |= set() if name in self.replicas else {change.document["spec"]["replicas"]}
        if plural == "deployments" and name in self.replicas:
            self._wrote_theirs(change)

    def _wrote_theirs(self, change: Change) -> None:
        """Check a change of a Deployment that people own."""
        name, before, after = change.key[2], change.before, change.document
        if change.type != "MODIFIED":
            self.wrong(f"8: {name} is {change.type} by flettner")
            return
        if self.reverted:
            self.wrong(f"8: {name} is written, and its owner reverts that")
        self._count_write(name)
        was, now = before["spec"]["replicas"], after["spec"]["replicas"]
        ends = [key for kind, key in self.intents if kind in {"retire", "stop", "launch"}]
        if not ends:
            self.wrong(f"8: {name} is written, and no effect asks for it")
        copied = name in self.stopped and now in self.copies
        if now != was and now > self.replicas[name] and not copied:
            self.wrong(f"8: {name} is scaled to {now}, and people want {self.replicas[name]}")
        if _fixed(before) != _fixed(after):
            self.wrong(f"8: more than flags, replicas and flettner's own marks is changed in {name}")
        if args_of(before) != args_of(after) and not self.promoted:
            self.wrong(f"8: the flags of {name} are changed in the phase {self.phase}, before any promotion")

    def _count_write(self, name: str) -> None:
        recent = [at_s for at_s in self.writes.get(name, ()) if self.world.at_s - at_s < HOUR_S]
        self.writes[name] = [*recent, self.world.at_s]
        most = min(MOST_WRITES, self.needed)
        if len(recent) + 1 > most:
            self.wrong(f"8: {name} is written {len(recent) + 1} times within an hour, {most} are needed")

    # Final state.

    def settled(self, *, mixed: bool, strays: frozenset[str]) -> list[str]:
        """As in all histories; besides, nothing of a green is left and flags are as before or approved."""
        problems = Observer.settled(self, mixed=mixed, strays=strays)
        world, store = self.cluster_world, self.cluster_world.cluster.server.store
        names = set(world.servers)
        for plural in ("deployments", "services"):
            for resource in store.select(plural, NAMESPACE):
                server = (resource["metadata"].get("labels") or {}).get(f"{OURS}server")
                if server and server not in names:
                    problems.append(f"{plural} {resource['metadata']['name']} of {server} is left")
        for name, wanted in self.replicas.items():
            document = store.get("deployments", NAMESPACE, name)
            least = self.keeps.get(name, wanted)
            if document and 0 < document["spec"]["replicas"] < least:
                problems.append(f"{name} has {document['spec']['replicas']} pods, and people want {wanted}")
        for process in world.servers.values():
            if frozenset(process.setting.items()) not in self.allowed:
                problems.append(f"{process.name} runs with {process.setting}, which is not approved")
        return problems


def _fixed(document: Json) -> object:
    """Return what flettner must not change in a Deployment of an operator."""
    metadata, spec = document["metadata"], document["spec"]
    [engine, *others] = spec["template"]["spec"]["containers"]
    template = {**spec["template"]["spec"], "containers": [{**engine, "args": []}, *others]}
    return (
        _without_ours(metadata.get("labels") or {}),
        _without_ours(metadata.get("annotations") or {}),
        {key: value for key, value in spec.items() if key not in {"replicas", "template"}},
        spec["template"].get("metadata"),
        template,
    )


def _without_ours(marks: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in marks.items() if not key.startswith(OURS)}
