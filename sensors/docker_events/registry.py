"""Map the containers of the host to servers of a target, and events to incidents. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flettner.agent.domain.digest import site_digest
from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import View
from flettner.agent.domain.reading import Incident, IncidentKind
from flettner.clients.docker.labels import SERVER, SITE, TARGET
from flettner.clients.docker.parse import ContainerEvent, ContainerSummary
from flettner.primitives.address import Address

HELD_S = 1.0
"""A container that ends leaves its networks before or after its `die` event, and a change of aliases
disconnects it for a moment. A disconnection that lasts longer was made on a running container."""

_MOST_CONTAINERS = 10_000  # a list is taken again if `destroy` events are missing
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class _Container:
    name: str
    labels: Mapping[str, str]
    reached: frozenset[Address] = frozenset()  # port 0: at every port
    endpoints: frozenset[str] = frozenset()  # new addresses at every start
    running: bool = False
    ended: str = ""  # the last end
    restarts: int = 0
    was_healthy: bool = False  # since it was started
    oom: bool = False  # since its last start
    signal: str = ""  # the last signal sent by Docker since its last start
    adopted: str = ""  # its name in the config, even if renamed
    left: dict[str, float] = field(default_factory=dict)  # networks, with the time of leaving


@dataclass(slots=True)
class ContainerRegistry:
    """The containers of the host by id. `adopted`: names of containers of the target without labels."""

    view: View
    adopted: Sequence[str] = ()
    _containers: dict[str, _Container] = field(default_factory=dict)

    def resync(self, summaries: Iterable[ContainerSummary], at: datetime) -> list[Incident]:
        """Compare with a new list: return the incidents of running containers while no stream was open."""
        listed = {summary.id: summary for summary in summaries}
        incidents: list[Incident] = []
        for key, container in self._containers.items():
            if container.running and (incident := _missed(container, listed.get(key))):
                incidents += self._incidents(container, *incident, at)
        for key in self._containers.keys() - listed.keys():
            del self._containers[key]
        self.update(listed.values())
        for key, summary in listed.items():
            self._containers[key].running = _runs(summary)
            self._containers[key].was_healthy |= "(healthy)" in summary.status
        return incidents

    def update(self, summaries: Iterable[ContainerSummary]) -> None:
        """Take names, labels and addresses from a list. A stopped container keeps its last address."""
        for summary in summaries:
            name = _name(summary)
            container = self._containers.setdefault(summary.id, _Container(name, summary.labels))
            container.name, container.labels = name, summary.labels
            container.adopted = name if name in self.adopted else container.adopted
            container.reached = _reached(summary) or container.reached
            container.endpoints = _endpoints(summary) or container.endpoints

    def record(self, event: ContainerEvent, at: datetime, clock_s: float) -> list[Incident]:
        """Return the incidents of an event; most events are no incident. Raises SensorError."""
        if event.kind == "network":
            self._record_network(event.action, event.attributes, clock_s)
            return []
        if event.action == "destroy":
            self._containers.pop(event.actor, None)
            return []
        if event.actor not in self._containers and len(self._containers) >= _MOST_CONTAINERS:
            raise SensorError(f"the Docker Engine reports more than {_MOST_CONTAINERS} containers")
        new = _Container(event.attributes.get("name", ""), event.attributes)
        container = self._containers.setdefault(event.actor, new)
        incident = _changed(container, event.action, event.attributes)
        return self._incidents(container, *incident, at) if incident else []

    def confirm_held(self, at: datetime, clock_s: float) -> list[Incident]:
        """Return disconnections that have lasted for HELD_S."""
        incidents: list[Incident] = []
        for container in self._containers.values():
            for network in [
                network for network, since in container.left.items() if clock_s - since >= HELD_S
            ]:
                del container.left[network]
                if container.running:
                    why = f"disconnected from the network {network}; undo it with docker network connect"
                    incidents += self._incidents(container, "disconnected", why, at)
        return incidents

    def _record_network(self, action: str, attributes: Mapping[str, str], clock_s: float) -> None:
        container = self._containers.get(attributes.get("container", ""))
        network = attributes.get("name", "")
        if container is not None and action == "connect":
            container.left.pop(network, None)
        elif container is not None and action == "disconnect" and container.running:
            container.left[network] = clock_s

    def _incidents(self, container: _Container, what: IncidentKind, why: str, at: datetime) -> list[Incident]:
        server = self._server(container)
        if server is None:
            return []
        return [Incident(at=at, server=server, what=what, why=why, container=container.name)]

    def _server(self, container: _Container) -> str | None:
        """Return the name of the container's server; None for a container that is not of the target."""
        if container.labels.get(TARGET):
            return container.labels.get(SERVER) if self._ours(container.labels) else None
        for server in self.view.servers():
            if any({address, Address(address.host, 0)} & container.reached for address in server.addresses):
                return server.name
        return container.adopted or None

    def _ours(self, labels: Mapping[str, str]) -> bool:
        site = site_digest(self.view.target, self.view.state_dir)
        return labels.get(TARGET) == self.view.target and labels.get(SITE, site) == site


def _changed(
    container: _Container, action: str, attributes: Mapping[str, str]
) -> tuple[IncidentKind, str] | None:
    """Apply the event; return the incident that it means."""
    match action.split():
        case ["start"]:
            return _started(container)
        case ["die"]:
            return _died(container, attributes.get("exitCode", "?"))
        case ["kill"]:
            container.signal = attributes.get("signal", "")
        case ["oom"]:
            container.oom = True
            return "oom", "the kernel killed one of its processes: out of memory"
        case ["pause"]:
            return "paused", "frozen by docker pause: no answers until docker unpause"
        case ["rename"]:
            old, container.name = container.name, attributes.get("name", "")
            return (
                "renamed",
                f"{attributes.get('oldName', old).removeprefix('/')} is now called {container.name}",
            )
        case ["health_status:", "healthy"]:
            container.was_healthy = True
        case ["health_status:", "unhealthy"] if container.was_healthy:
            container.was_healthy = False
            return "unhealthy", "its own health check, which had passed before, fails"
    return None


def _missed(container: _Container, summary: ContainerSummary | None) -> tuple[IncidentKind, str] | None:
    """Return the incident of a container that ran when the last stream ended."""
    if summary is None or not _runs(summary):
        container.ended = summary.status if summary else "it was removed"
        return "died", f"while the Docker Engine was away: {container.ended}"
    now = _endpoints(summary)
    if now and container.endpoints and now.isdisjoint(container.endpoints):
        container.was_healthy = False
        return "restarted", "while the Docker Engine was away"
    return None


def _started(container: _Container) -> tuple[IncidentKind, str] | None:
    ended, again = container.ended, bool(container.ended) and not container.running
    container.running = True
    container.was_healthy = container.oom = False
    container.signal = container.ended = ""
    if not again:
        return None
    container.restarts += 1
    return "restarted", f"started again after {ended}; seen {container.restarts} times"


def _died(container: _Container, code: str) -> tuple[IncidentKind, str] | None:
    if not container.running and container.ended:
        return None
    how = f"exit code {code}"
    if container.oom:
        how += ", after the kernel killed one of its processes: out of memory"
    elif container.signal:
        how += f", after Docker sent signal {container.signal}"
    container.running, container.ended = False, how
    container.left.clear()
    return "died", how


def _runs(summary: ContainerSummary) -> bool:
    return summary.state in {"running", "paused"}


def _name(summary: ContainerSummary) -> str:
    """Return the container's own name; names with a second slash are aliases of links."""
    names = [name.removeprefix("/") for name in summary.names]
    return next((name for name in names if "/" not in name), "")


def _reached(summary: ContainerSummary) -> frozenset[Address]:
    addresses = {
        Address(network.address, 0) for network in summary.networks.values() if network and network.address
    }
    for port in summary.ports:
        if port.public:
            published = Address(port.host, port.public)
            hosts = (port.host, *_HERE) if published.is_wildcard else (port.host,)
            addresses |= {Address(host, port.public) for host in hosts}
    return frozenset(addresses)


def _endpoints(summary: ContainerSummary) -> frozenset[str]:
    return frozenset(network.id for network in summary.networks.values() if network and network.id)
