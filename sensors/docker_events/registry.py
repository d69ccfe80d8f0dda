"""Which container is which server of a target, and what happened to it. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from agent.domain.digest import digest
from agent.domain.errors import SensorError
from agent.domain.ports import View
from agent.domain.reading import Incident, IncidentKind
from docker_engine.parse import ContainerEvent, ContainerSummary

TARGET = "trimtab.target"
SERVER = "trimtab.server"
SITE = "trimtab.site"
"""As the engine labels its containers; adapters do not import each other, so a test holds them equal."""

HELD_S = 1.0
"""A container that ends leaves its networks, before or after it says so; one that is given another alias
leaves for a moment. What is not over by then was done to a container that runs."""

_HEX = 12
_MOST_KNOWN = 10_000  # an Engine that loses the ends of its containers is listed anew
_ANY = ("0.0.0.0", "::", "")  # noqa: S104 - where Docker publishes, not where we listen
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class _Container:
    name: str
    labels: Mapping[str, str]
    reached: frozenset[tuple[str, str]] = frozenset()  # host and port; a host alone has the port ""
    endpoints: frozenset[str] = frozenset()  # new ones at every start
    running: bool = False
    ended: str = ""  # how it ended the last time
    restarts: int = 0
    was_healthy: bool = False  # since it was started
    oom: bool = False  # since it was started
    signal: str = ""  # the last one that Docker was asked to send, since it was started
    adopted: str = ""  # the name by which the config knows it, whatever it is called by now
    left: dict[str, float] = field(default_factory=dict)  # networks, and when, in the caller's seconds


@dataclass(slots=True)
class ContainerRegistry:
    """The host's containers by id. `adopted`: names of those that belong to the target without a label."""

    view: View
    adopted: Sequence[str] = ()
    _known: dict[str, _Container] = field(default_factory=dict)

    def resync(self, summaries: Iterable[ContainerSummary], at: datetime) -> list[Incident]:
        """What has happened while nobody listened, to containers that ran before. The first time nothing."""
        listed = {summary.id: summary for summary in summaries}
        said = []
        for key, container in self._known.items():
            if container.running and (found := _missed(container, listed.get(key))):
                said += self._said(container, *found, at)
        for key in self._known.keys() - listed.keys():
            del self._known[key]
        self.learn(listed.values())
        for key, summary in listed.items():
            self._known[key].running = _runs(summary)
            self._known[key].was_healthy |= "(healthy)" in summary.status
        return said

    def learn(self, summaries: Iterable[ContainerSummary]) -> None:
        """Names, labels and addresses. One that does not run has no address: the last one known stays."""
        for summary in summaries:
            name = _name(summary)
            container = self._known.setdefault(summary.id, _Container(name, summary.labels))
            container.name, container.labels = name, summary.labels
            container.adopted = name if name in self.adopted else container.adopted
            container.reached = _reached(summary) or container.reached
            container.endpoints = _endpoints(summary) or container.endpoints

    def happened(self, event: ContainerEvent, at: datetime, clock_s: float) -> list[Incident]:
        """What one event of the Engine means to the target's servers; mostly nothing. Raises SensorError."""
        if event.kind == "network":
            self._moved(event.action, event.attributes, clock_s)
            return []
        if event.action == "destroy":
            self._known.pop(event.actor, None)
            return []
        if event.actor not in self._known and len(self._known) >= _MOST_KNOWN:
            raise SensorError(f"the Docker Engine tells of more than {_MOST_KNOWN} containers")
        new = _Container(event.attributes.get("name", ""), event.attributes)
        container = self._known.setdefault(event.actor, new)
        found = _changed(container, event.action, event.attributes)
        return self._said(container, *found, at) if found else []

    def settled(self, at: datetime, clock_s: float) -> list[Incident]:
        """What was held back, and has proved true."""
        said = []
        for container in self._known.values():
            for network in [one for one, since in container.left.items() if clock_s - since >= HELD_S]:
                del container.left[network]
                if container.running:
                    why = f"taken off the network {network}; docker network connect puts it back"
                    said += self._said(container, "disconnected", why, at)
        return said

    def _moved(self, action: str, told: Mapping[str, str], clock_s: float) -> None:
        container = self._known.get(told.get("container", ""))
        network = told.get("name", "")
        if container is not None and action == "connect":
            container.left.pop(network, None)
        elif container is not None and action == "disconnect" and container.running:
            container.left[network] = clock_s

    def _said(self, container: _Container, what: IncidentKind, why: str, at: datetime) -> list[Incident]:
        server = self._server(container)
        if server is None:
            return []
        return [Incident(at=at, server=server, what=what, why=why, container=container.name)]

    def _server(self, container: _Container) -> str | None:
        """Its name; None: it is none of the target's."""
        if container.labels.get(TARGET):
            return container.labels.get(SERVER) if self._ours(container.labels) else None
        for server in self.view.servers():
            host, _, port = server.address.rpartition(":")
            if (host.strip("[]"), port) in container.reached or (host, "") in container.reached:
                return server.name
        return container.adopted or None

    def _ours(self, labels: Mapping[str, str]) -> bool:
        site = site_digest(self.view.target, str(self.view.state_dir.absolute()))
        return labels.get(TARGET) == self.view.target and labels.get(SITE, site) == site


def site_digest(target: str, state_dir: str) -> str:
    """The label that tells apart two daemons of one host."""
    return digest([target, state_dir]).removeprefix("sha256:")[:_HEX]


def _changed(container: _Container, action: str, told: Mapping[str, str]) -> tuple[IncidentKind, str] | None:
    """Take the event in; what is worth saying of it."""
    match action.split():
        case ["start"]:
            return _started(container)
        case ["die"]:
            return _died(container, told.get("exitCode", "?"))
        case ["kill"]:
            container.signal = told.get("signal", "")
        case ["oom"]:
            container.oom = True
            return "oom", "the kernel killed a process of it: it had no memory left"
        case ["pause"]:
            return "paused", "frozen by docker pause: it answers nothing until docker unpause"
        case ["rename"]:
            old, container.name = container.name, told.get("name", "")
            return "renamed", f"{told.get('oldName', old).removeprefix('/')} is now called {container.name}"
        case ["health_status:", "healthy"]:
            container.was_healthy = True
        case ["health_status:", "unhealthy"] if container.was_healthy:
            container.was_healthy = False
            return "unhealthy", "its own health check, which had passed before, fails"
    return None


def _missed(container: _Container, summary: ContainerSummary | None) -> tuple[IncidentKind, str] | None:
    """What became of a container that ran when the Engine was heard last."""
    if summary is None or not _runs(summary):
        container.ended = summary.status if summary else "it was removed"
        return "died", f"while Docker could not be heard: {container.ended}"
    now = _endpoints(summary)
    if now and container.endpoints and now.isdisjoint(container.endpoints):
        container.was_healthy = False
        return "restarted", "while Docker could not be heard"
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
        how += ", after the kernel killed a process of it for want of memory"
    elif container.signal:
        how += f", after Docker was asked to send signal {container.signal}"
    container.running, container.ended = False, how
    container.left.clear()
    return "died", how


def _runs(summary: ContainerSummary) -> bool:
    return summary.state in {"running", "paused"}


def _name(summary: ContainerSummary) -> str:
    """Its own; names with a second slash are those that links gave it."""
    names = [name.removeprefix("/") for name in summary.names]
    return next((name for name in names if "/" not in name), "")


def _reached(summary: ContainerSummary) -> frozenset[tuple[str, str]]:
    found = set()
    for port in summary.ports:
        if port.public:
            hosts = (port.host, *_HERE) if port.host in _ANY else (port.host,)
            found |= {(host, str(port.public)) for host in hosts}
    found |= {(one.address, "") for one in summary.networks.values() if one and one.address}
    return frozenset(found)


def _endpoints(summary: ContainerSummary) -> frozenset[str]:
    return frozenset(one.id for one in summary.networks.values() if one and one.id)
