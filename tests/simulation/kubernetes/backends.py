"""vLLM in the pods of the cluster: each process, its state and its open requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.simulation.world import Boot, Client
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.pods import RunningPod

_UNREADY_S = 3.0  # three failed probes of a process that hangs


@dataclass(eq=False, slots=True, kw_only=True)
class Backend:
    """The process of one pod. `status` as of `world.Process`."""

    pod: RunningPod
    setting: Mapping[str, object]
    deployment: str
    status: str = "starting"
    errors: float = 0.0
    adapters: set[str] = field(default_factory=set)
    deleted: bool = False  # to end, by the deletion of its pod
    restarted: bool = False  # by the kubelet, after it had exited
    open: dict[int, Client] = field(default_factory=dict)

    @property
    def connects(self) -> bool:
        return self.status in {"healthy", "wedged", "hung"}

    @property
    def answers(self) -> bool:
        return self.status in {"healthy", "wedged"}


@dataclass(eq=False, slots=True, kw_only=True)
class Backends:
    """`lost` is called when a process ends, before its state changes."""

    random: Random
    later: Callable[[float, Callable[[], object]], object]
    boot_of: Callable[[Mapping[str, object]], Boot]
    changed: Callable[[Backend], None]
    lost: Callable[[Backend], None]
    quiet: Callable[[], bool]
    deployment_of: Callable[[RunningPod], str]
    by_uid: dict[str, Backend] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # uids of all pods that have started

    def started(self, pod: RunningPod) -> None:
        setting = parse_setting(pod.document["spec"]["containers"][0])
        restarted = pod.uid in self.known
        self.known.add(pod.uid)
        backend = Backend(pod=pod, setting=setting, deployment=self.deployment_of(pod), restarted=restarted)
        self.by_uid[pod.uid] = backend
        pod.log.append("starting")
        boot = self.boot_of(setting)
        self.later(self.random.uniform(*boot.takes_s), lambda: self._booted(backend, boot))

    def ended(self, pod: RunningPod, *, asked: bool) -> None:
        backend = self.by_uid[pod.uid]
        backend.deleted = asked
        self.lost(backend)
        del self.by_uid[pod.uid]
        backend.status = "exited"
        self.changed(backend)

    def _booted(self, backend: Backend, boot: Boot) -> None:
        if self.by_uid.get(backend.pod.uid) is not backend or backend.status != "starting":
            return
        if boot.fails:
            backend.pod.exit(1)
            return
        self.turn(backend, "healthy")
        if boot.becomes and not self.quiet():
            self.later(boot.turns_s, lambda: None if self.quiet() else self.turn(backend, boot.becomes))

    def turn(self, backend: Backend, status: str) -> None:
        """Let the process exit, hang, wedge or recover."""
        if self.by_uid.get(backend.pod.uid) is not backend:
            return
        if status == "exited":
            backend.pod.exit(1)
            return
        backend.status = status
        self.later(0.3 if backend.answers else _UNREADY_S, lambda: self._probe(backend))
        self.changed(backend)

    def _probe(self, backend: Backend) -> None:
        """As the kubelet: whether /health answers decides if it is ready."""
        if self.by_uid.get(backend.pod.uid) is backend and backend.pod.ready is not backend.answers:
            backend.pod.become_ready(ready=backend.answers)
            self.changed(backend)


def parse_setting(container: Json) -> dict[str, object]:
    """Return the flags of the container's arguments; the product has its own parser."""
    words, setting, flag = [*container.get("args", ())], dict[str, object](), ""
    for word in words:
        if word.startswith("--no-"):
            setting[word[5:].replace("-", "_")] = False
        elif word.startswith("--"):
            flag, _, value = word[2:].replace("-", "_").partition("=")
            setting[flag] = _value(value) if value else True
        else:
            setting[flag or "model"] = _value(word)
    return setting


def _value(word: str) -> object:
    if word.isdecimal():
        return int(word)
    return float(word) if word.replace(".", "", 1).isdecimal() else word
