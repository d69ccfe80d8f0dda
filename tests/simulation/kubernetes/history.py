"""One history on Kubernetes: the scenario played over a cluster in memory."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace

from flettner.agent.domain.effects import Route
from flettner.agent.domain.ports import Engine
from flettner.agent.machine.transitions import Rules
from tests.simulation.adapters import Host
from tests.simulation.clock import Owner
from tests.simulation.history import History, HistoryResult
from tests.simulation.kubernetes import actions
from tests.simulation.kubernetes.backends import Backend
from tests.simulation.kubernetes.engine import engine_of
from tests.simulation.kubernetes.manifest import manifest
from tests.simulation.kubernetes.network import Network, installed
from tests.simulation.kubernetes.observer import KubernetesObserver
from tests.simulation.kubernetes.scenario import ClusterScenario
from tests.simulation.kubernetes.world import KubernetesWorld
from tests.simulation.process import Daemon
from tests.simulation.scenario import Act
from tests.simulation.setup import BLUE, boots, rules_of
from tests.simulation.world import Boot, Process

QUIET_S = 220.0
SETTLED_S = 2700.0  # a start that fails after half an hour ends within it
START_S = 100  # deadline of green
BEGINS_S = 45.0  # the operator's pods are ready


@dataclass(repr=False, slots=True, kw_only=True)
class KubernetesHistory(History):
    scenario: ClusterScenario
    world: KubernetesWorld = field(init=False)
    observer: KubernetesObserver = field(init=False)
    network: Network = field(init=False)
    quiet_s: float = QUIET_S
    settled_s: float = SETTLED_S

    def __post_init__(self) -> None:
        History.__post_init__(self)
        self.network = Network(self)
        self.world.wrote = self.observer.wrote_object
        self.world.refused = self.observer.refused
        self.world.ended_backend = self.observer.ended_backend
        self.world.broken = self._broken

    def make_world(self) -> KubernetesWorld:
        return KubernetesWorld(
            loop=self.loop,
            random=self.random,
            boot_of=self.boot_of,
            names=tuple(self.scenario.names),
            rate=self.scenario.rate,
        )

    def boot_of(self, process: Process) -> Boot:
        new = process.setting.get("max_num_seqs") not in {BLUE["max_num_seqs"], actions.EDITED}
        return replace(boots(self.scenario)[new], takes_s=self.scenario.boots_s)

    def make_observer(self) -> KubernetesObserver:
        scenario = self.scenario
        replicas = dict.fromkeys(scenario.names, scenario.replicas)
        return KubernetesObserver(
            **self.observed(),
            replicas=replicas,
            reverted=bool(scenario.writer),
            api_fails=lambda: any(map(self.active, actions.LASTING)),
        )

    def make_rules(self) -> Rules:
        rules = rules_of(self.scenario, other=self.other)
        plan = replace(rules.plan, start_s=START_S)
        strategy = self.scenario.strategy
        return replace(rules, plan=plan, strategy="surge" if strategy == "save" else strategy)

    def make_engine(self, daemon: Daemon) -> Engine:
        return engine_of(
            daemon, tuple(self.scenario.names), process=daemon.number, acts=self.mode != "advise"
        )

    def apply(self, act: Act) -> bool:
        return actions.do(self, act)

    def heal(self) -> None:
        actions.heal(self)

    def surroundings(self) -> AbstractContextManager[object]:
        with_network = ExitStack()
        with_network.enter_context(installed(self.network))
        with_network.enter_context(History.surroundings(self))
        return with_network

    def begin_servers(self) -> None:
        """The operator's Deployments serve before the daemon starts."""
        self.add_nodes()
        for name in self.scenario.names:
            actions.write(self, "POST", "deployments", name, manifest(name, self.scenario), by="kubectl")
            if self.scenario.writer:
                self.loop.outside(BEGINS_S, lambda name=name: actions.argo(self, name))  # type: ignore[misc]

    def begin_daemon(self) -> None:
        self.loop.outside(BEGINS_S, self.start)

    def add_nodes(self) -> None:
        """Two nodes; one that was lost returns."""
        pods = self.scenario.servers * self.scenario.replicas
        for name in ("node-1", "node-2"):
            if self.world.cluster.server.store.get("nodes", "", name) is None:
                self.world.cluster.add_node(name, pods if self.scenario.spare else -(-pods // 2))

    def add_wanted_node(self) -> None:
        """A third one, for the pods that an autoscaler has added."""
        more = sum(self.observer.replicas.values()) - self.scenario.servers * self.scenario.replicas
        if more > 0:
            self.world.cluster.add_node("node-3", more)

    def host_of(self, owner: Owner | None) -> Host:
        return next((daemon for daemon in self.daemons if daemon.owner is owner), self.daemons[-1])

    def disturb(self, path: str) -> None:
        """Another client writes the object of this path."""
        plural, name = path.split("/")[-2:]
        if plural in {"deployments", "services"}:
            change = {"metadata": {"annotations": {"seen": str(self.loop.now_s)}}}
            actions.write(self, "PATCH", plural, name, change, by="kube-controller-manager")

    def _called(self, daemon: Daemon, kind: str, name: str, route: Route | None) -> None:
        if route is not None or kind == "drain":
            History._called(self, daemon, kind, name, route)
            return
        self.calls[kind] += 1
        self.observer.performs(kind, name)

    def _broken(self, backend: Backend) -> None:
        self.observer.backend_changed(backend)


def play(scenario: ClusterScenario) -> HistoryResult:
    return KubernetesHistory(scenario=scenario).run()
