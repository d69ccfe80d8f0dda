"""The world of a target on Kubernetes: a server is what the name of a Service resolves to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.simulation.kubernetes.backends import Backend, Backends, parse_setting
from tests.simulation.world import BAD, GIVES_UP_S, Boot, Client, Process, World
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.cluster import MemoryCluster
from tests.support.kubernetes.memory.pods import RunningPod
from tests.support.kubernetes.memory.store import Change

NAMESPACE = "chat"
SERVER, DEPLOYMENT = "flettner.dev/server", "flettner.dev/deployment"
DNS_S = (5.0, 35.0)  # how old an address may be: CoreDNS caches for 30 s, Envoy asks every 5 s
FLETTNER = "flettner:"  # and the epoch: a client


@dataclass(repr=False, slots=True, kw_only=True)
class KubernetesWorld(World):
    """`names`: of the operator's Deployments. `wrote` gets each write of flettner's."""

    names: tuple[str, ...]
    cluster: MemoryCluster = field(init=False)
    backends: Backends = field(init=False)
    wrote: Callable[[Change], None] = lambda change: None  # noqa: ARG005
    broken: Callable[[Backend], None] = lambda backend: None  # noqa: ARG005
    refused: Callable[[str], None] = lambda name: None  # noqa: ARG005
    ended_backend: Callable[[Backend, int, int], None] = lambda backend, requests, epoch: None  # noqa: ARG005
    blame: dict[str, str] = field(default_factory=dict)  # who ends the pods of a Deployment, by its uid
    _resolved: dict[str, tuple[float, list[str]]] = field(
        default_factory=dict
    )  # until when, and uids of pods
    _backend_of: dict[int, Backend] = field(default_factory=dict)  # of an open request

    def __post_init__(self) -> None:
        self.backends = Backends(
            random=self.random,
            later=self.loop.outside,
            boot_of=lambda setting: self.boot_of(
                Process(name="", setting=dict(setting), address="", ours=True)
            ),
            changed=self._backend_changed,
            lost=self._lost,
            quiet=lambda: self.quiet,
            deployment_of=self._deployment_uid,
        )
        self.cluster = MemoryCluster(
            now=self.loop.wall, later=self.loop.outside, random=self.random, processes=self.backends
        )
        self.cluster.server.store.listeners.append(self._object_changed)

    # Servers, as the names of Services give them.

    def _object_changed(self, change: Change) -> None:
        plural = change.key[0]
        if plural == "deployments":
            self._blame(change)
        if change.by.startswith(FLETTNER):
            self.wrote(change)
        if plural in {"deployments", "services", "pods"}:
            self.refresh()
        if plural == "deployments" and change.type == "ADDED" and change.by.startswith(FLETTNER):
            epoch = int(change.by.removeprefix(FLETTNER))
            self.changed("create", change.key[2], epoch)

    def _blame(self, change: Change) -> None:
        before, after = change.before.get("spec", {}), change.document["spec"]
        gone = change.type == "DELETED"
        if gone or any(before.get(key) != after.get(key) for key in ("replicas", "template")):
            self.blame[change.document["metadata"]["uid"]] = change.by

    def _backend_changed(self, backend: Backend) -> None:
        self.broken(backend)
        before = {name: process.status for name, process in self.servers.items()}
        self.refresh()
        for name in sorted(before.keys() | self.servers.keys()):
            process = self.servers.get(name)
            status = process.status if process else "exited"
            if status != before.get(name, status):
                epoch = self.epoch_of(backend)
                self.changed("stop" if epoch else status, name, epoch)

    def refresh(self) -> None:
        """Read the servers anew from the Services and Deployments."""
        store, processes = self.cluster.server.store, dict[str, Process]()
        served = set()
        for service in store.select("services", NAMESPACE):
            name = (service["metadata"].get("annotations") or {}).get(SERVER)
            if name is None:
                continue
            deployment = service["metadata"]["annotations"].get(DEPLOYMENT, "")
            served.add(deployment)
            self._add(processes, name, deployment, f"{service['metadata']['name']}.{NAMESPACE}.svc:8000")
        for document in store.select("deployments", NAMESPACE):
            name = document["metadata"]["name"]
            if name in self.names and name not in served and name not in processes:
                self._add(processes, name, name, "")
        for name in [*self.servers.keys() - processes.keys()]:
            del self.servers[name]
        self.servers |= processes

    def _add(self, processes: dict[str, Process], name: str, deployment: str, address: str) -> None:
        document = self.cluster.server.store.get("deployments", NAMESPACE, deployment)
        backends = self.of_deployment(deployment)
        if document is None or not (backends or document["spec"]["replicas"]):
            return
        process = self.servers.get(name) or Process(name=name, setting={}, address=address, ours=False)
        settings = [dict(backend.setting) for backend in backends if backend.answers]
        process.setting = (
            settings or [parse_setting(document["spec"]["template"]["spec"]["containers"][0])]
        )[0]
        process.address, process.ours = address, deployment not in self.names
        status = _together([backend.status for backend in backends])
        if process.status != status:
            process.status, process.since_s = status, self.at_s
        process.errors = max([backend.errors for backend in backends], default=0.0)
        processes[name] = process

    def caps_of(self, process: Process) -> set[object]:
        """Those of its pods: a rolling update that finds no room leaves older ones."""
        serving = [backend for backend in self.behind(process.address) if backend.answers]
        return {backend.setting.get("max_num_seqs") for backend in serving} or World.caps_of(self, process)

    def of_deployment(self, name: str) -> list[Backend]:
        document = self.cluster.server.store.get("deployments", NAMESPACE, name)
        uid = document["metadata"]["uid"] if document else ""
        return [backend for backend in self.backends.by_uid.values() if backend.deployment == uid]

    def behind(self, address: str) -> list[Backend]:
        """Return the processes that a name resolves to at present: those of ready pods."""
        store, service = self.cluster.server.store, address.partition(".")[0]
        document = store.get("services", NAMESPACE, service)
        selector = document["spec"].get("selector") if document else None
        if not selector:
            return []
        pods = [
            pod["metadata"]["uid"]
            for pod in store.select("pods", NAMESPACE)
            if selector.items() <= pod["metadata"]["labels"].items()
            and "deletionTimestamp" not in pod["metadata"]
        ]
        backends = [self.backends.by_uid[uid] for uid in pods if uid in self.backends.by_uid]
        return [backend for backend in backends if backend.pod.ready]

    def answers(self, name: str) -> bool:
        """Whether a scrape of its name is answered."""
        process = self.servers.get(name)
        return process is not None and any(backend.answers for backend in self.behind(process.address))

    def load_adapter(self, server: str, name: str) -> None:
        """At one of the pods behind the server's name."""
        address = self.split.addresses[server] if self.split else ""
        pod = next(backend for backend in self.behind(address) if backend.answers)
        pod.adapters.add(name)

    def loaded_adapters(self) -> set[str]:
        return {name for backend in self.backends.by_uid.values() for name in backend.adapters}

    def serving(self) -> list[str]:
        """By the pods behind the name: at the end of a handover those of the other Deployment."""
        addresses = self.split.addresses if self.split else {}
        return [
            name
            for name in self.in_force()
            if any(
                backend.answers and max(backend.errors, self.boot_of_backend(backend).errors) < BAD
                for backend in self.behind(addresses.get(name, ""))
            )
        ]

    def at(self, address: str) -> Backend | None:
        """Return the process of the pod with this address."""
        ip = address.rpartition(":")[0]
        return next((backend for backend in self.backends.by_uid.values() if backend.pod.address == ip), None)

    def _deployment_uid(self, pod: RunningPod) -> str:
        return self.cluster.deployments.owners.get(pod.uid, "")

    # The proxy and its clients.

    def resolved(self, name: str) -> list[Backend]:
        """Return the processes at the addresses that the proxy has for a server; they may be old."""
        address = self.split.addresses.get(name, "") if self.split else ""
        until_s, uids = self._resolved.get(address, (-1.0, []))
        if self.at_s >= until_s:
            uids = [backend.pod.uid for backend in self.behind(address)]
            self._resolved[address] = self.at_s + self.random.uniform(*DNS_S), uids
        return [self.backends.by_uid[uid] for uid in uids if uid in self.backends.by_uid]

    def sends_to(self, backend: Backend) -> bool:
        """Whether the proxy may send a new request to this process."""
        shares = self.in_force()
        return any(backend in self.resolved(name) for name in shares)

    def pick(self, shares: Mapping[str, int]) -> str:
        names = [*shares]
        name = self.random.choices(names, [*shares.values()])[0]
        if any(backend.connects for backend in self.resolved(name)):
            return name
        others = [other for other in names if any(backend.answers for backend in self.resolved(other))]
        if others:  # no connection: the proxy retries another server and logs the attempt
            self.log(Client(id=-1, server=name, began_s=self.at_s, outcome="failed", status=0))
        return self.random.choice(others) if others else name

    def accept(self, name: str) -> None:
        self.ledger.accepted += 1
        connected = [candidate for candidate in self.resolved(name) if candidate.connects]
        client = Client(id=next(self._ids), server=name, began_s=self.at_s, outcome="ok", status=200)
        if not connected:
            client.outcome, client.status = "failed", 0
            self.refused(name)
            self.end(client)
            return
        backend, draw = self.random.choice(connected), self.random.random()
        lasts_s = 0.3 + draw if draw < 0.85 else 40.0 * (draw - 0.8)
        if backend.status != "healthy":
            client.outcome, client.status, lasts_s = "gave_up", 0, GIVES_UP_S
        elif self.random.random() < max(backend.errors, self.boot_of_backend(backend).errors):
            client.outcome, client.status, lasts_s = "failed", 500, 0.1
        self.open_of.setdefault(name, {})[client.id] = client
        backend.open[client.id] = client
        self.loop.outside(lasts_s, lambda: self._finish(client, backend))

    def boot_of_backend(self, backend: Backend) -> Boot:
        return self.boot_of(Process(name="", setting=dict(backend.setting), address="", ours=True))

    def _finish(self, client: Client, backend: Backend) -> None:
        if not client.ended:
            backend.open.pop(client.id, None)
            del self.open_of[client.server][client.id]
            self.end(client)

    def _lost(self, backend: Backend) -> None:
        """End the requests of a process that ended. Those that flettner cut are counted as such."""
        epoch = self.epoch_of(backend)
        clients = [*backend.open.values()]
        self.ended_backend(backend, len(clients), epoch)
        for client in clients:
            client.outcome, client.status = ("cut" if epoch and backend.answers else "failed"), 0
            self._finish(client, backend)

    def epoch_of(self, backend: Backend) -> int:
        """Return the epoch of the daemon that ended it; 0: no daemon did."""
        by = self.blame.get(backend.deployment, "") if backend.deleted else ""
        return int(by.removeprefix(FLETTNER)) if by.startswith(FLETTNER) else 0

    def set_status(self, name: str, status: str) -> None:
        process = self.servers.get(name)
        for backend in self.behind(process.address) if process else ():
            self.backends.turn(backend, status)

    def document(self, name: str) -> Json | None:
        return self.cluster.server.store.get("deployments", NAMESPACE, name)


def _together(statuses: list[str]) -> str:
    """Return the state of a server by those of its processes: the best one counts."""
    best_first = ("healthy", "wedged", "hung", "starting")
    return next((status for status in best_first if status in statuses), "starting")
