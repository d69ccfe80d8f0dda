"""Which container is which server of a target, and what happened to it. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agent.digest import digest
from agent.ports import View
from agent.reading import Incident, IncidentKind

Json = Mapping[str, Any]

TARGET = "trimtab.target"
SERVER = "trimtab.server"
SITE = "trimtab.site"
"""As the engine labels its containers; adapters do not import each other, so a test holds them equal."""

HELD_S = 1.0
"""A container that ends leaves its networks, before or after it says so; one that is given another alias
leaves for a moment. What is not over by then was done to a container that runs."""

_HEX = 12
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
class Roster:
    """The host's containers by id. `adopted`: names of those that belong to the target without a label."""

    view: View
    adopted: Sequence[str] = ()
    _known: dict[str, _Container] = field(default_factory=dict)

    def resync(self, summaries: Iterable[Json], at: datetime) -> list[Incident]:
        """What has happened while nobody listened, to containers that ran before. The first time nothing."""
        listed = {str(summary["Id"]): summary for summary in summaries}
        said = []
        for key, container in self._known.items():
            if container.running and (found := _missed(container, listed.get(key))):
                said += self._said(container, *found, at)
        for key in self._known.keys() - listed.keys():
            del self._known[key]
        self.learn(listed.values())
        for key, summary in listed.items():
            self._known[key].running = _runs(summary)
            self._known[key].was_healthy |= "(healthy)" in str(summary.get("Status"))
        return said

    def learn(self, summaries: Iterable[Json]) -> None:
        """Names, labels and addresses. One that does not run has no address: the last one known stays."""
        for summary in summaries:
            name, labels = _name(summary), summary.get("Labels") or {}
            container = self._known.setdefault(str(summary["Id"]), _Container(name, labels))
            container.name, container.labels = name, labels
            container.adopted = name if name in self.adopted else container.adopted
            container.reached = _reached(summary) or container.reached
            container.endpoints = _endpoints(summary) or container.endpoints

    def happened(self, event: Json, at: datetime, clock_s: float) -> list[Incident]:
        """What one event of the Engine means to the target's servers; mostly nothing."""
        actor = event.get("Actor") or {}
        told: Mapping[str, str] = actor.get("Attributes") or {}
        action = str(event.get("Action"))
        if event.get("Type") == "network":
            self._moved(action, told, clock_s)
            return []
        key = str(actor.get("ID"))
        container = self._known.setdefault(key, _Container(told.get("name", ""), told))
        if action == "destroy":
            del self._known[key]
            return []
        found = _changed(container, action, told)
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


def _missed(container: _Container, summary: Json | None) -> tuple[IncidentKind, str] | None:
    """What became of a container that ran when the Engine was heard last."""
    if summary is None or not _runs(summary):
        container.ended = str(summary.get("Status", "")) if summary else "it was removed"
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


def _runs(summary: Json) -> bool:
    return summary.get("State") in {"running", "paused"}


def _name(summary: Json) -> str:
    """Its own; names with a second slash are those that links gave it."""
    names = [str(name).removeprefix("/") for name in summary.get("Names") or ()]
    return next((name for name in names if "/" not in name), "")


def _reached(summary: Json) -> frozenset[tuple[str, str]]:
    found = set()
    for port in summary.get("Ports") or ():
        if port.get("PublicPort"):
            published = str(port.get("IP") or "")
            hosts = (published, *_HERE) if published in _ANY else (published,)
            found |= {(host, str(port["PublicPort"])) for host in hosts}
    found |= {(str(one["IPAddress"]), "") for one in _networks(summary) if one.get("IPAddress")}
    return frozenset(found)


def _endpoints(summary: Json) -> frozenset[str]:
    return frozenset(str(one["EndpointID"]) for one in _networks(summary) if one.get("EndpointID"))


def _networks(summary: Json) -> list[Json]:
    networks = (summary.get("NetworkSettings") or {}).get("Networks") or {}
    return [one for one in networks.values() if one]
