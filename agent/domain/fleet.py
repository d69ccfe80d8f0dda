"""The servers of a target and the split of its traffic, as far as they outlast a rollout."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from flettner.agent.domain.effects import Retire, Route
from flettner.agent.domain.model import Adapter, Server
from flettner.vllm_facts.values import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SparedServer:
    """A server that a saving stops, or of which it keeps some replicas; a launch gives all of them back."""

    name: str
    replicas: int  # before the saving
    keep: int = 0  # replicas that serve on


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The servers with the setting in force. Some of them may be stopped or have exited; others retire."""

    servers: tuple[Server, ...] = ()  # with the setting in force, running or not; the first one is blue
    stopped: tuple[str, ...] = ()  # names of servers that flettner stopped to free a slot
    exited: tuple[str, ...] = ()  # names of these servers and of green ones whose process exited
    retiring: tuple[Retire, ...] = ()  # retirements outside the rollout, repeated until done
    retiring_asked: datetime | None = None  # when they were last requested
    last_number: int = 0  # of the last server named
    adapters: tuple[Adapter, ...] = ()  # that clients get: whatever one of its servers has loaded last
    spared: tuple[SparedServer, ...] = ()  # by the saving that is tried or in force

    @property
    def blue(self) -> Server | None:
        """The first server, to which traffic returns; None while no server is known."""
        return self.servers[0] if self.servers else None

    @property
    def setting(self) -> Setting:
        """The setting in force, which is blue's; empty while no server is known."""
        return self.servers[0].setting if self.servers else {}

    @property
    def running(self) -> tuple[Server, ...]:
        """The servers that can carry traffic."""
        return tuple(s for s in self.servers if s.name not in self.stopped and s.name not in self.exited)

    @property
    def replica_count(self) -> int:
        """The replicas of all servers that can carry traffic."""
        return sum(server.replicas for server in self.running)

    def has(self, name: str) -> bool:
        return any(server.name == name for server in self.servers)

    def with_running_blue(self) -> "Fleet":
        """A running server comes first, if there is one."""
        running = self.running
        if not running or self.servers[0] in running:
            return self
        return replace(self, servers=(running[0], *(s for s in self.servers if s.name != running[0].name)))

    def with_stopped(self, name: str) -> "Fleet":
        """Flettner has stopped the server, which can be started again."""
        exited = tuple(other for other in self.exited if other != name)
        return replace(self, stopped=(*self.stopped, name), exited=exited)

    def with_replicas(self, name: str, replicas: int) -> "Fleet":
        return replace(self, servers=resize_server(self.servers, name, replicas))

    def with_exited(self, name: str) -> "Fleet":
        return self if name in self.exited else replace(self, exited=(*self.exited, name))

    def without(self, name: str) -> "Fleet":
        return replace(
            self,
            servers=tuple(server for server in self.servers if server.name != name),
            stopped=tuple(other for other in self.stopped if other != name),
        )


def resize_server(servers: Iterable[Server], name: str, replicas: int) -> tuple[Server, ...]:
    return tuple(replace(server, replicas=replicas) if server.name == name else server for server in servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The split of the traffic. In a failover `route` takes the place of the split that a phase planned."""

    route: Route | None = None  # the last one requested
    planned: Route | None = None  # None: there is no failover

    @property
    def intended(self) -> Route | None:
        """The last split that a phase requested; in force unless a failover replaces it."""
        return self.planned or self.route

    @property
    def weights(self) -> Mapping[str, int]:
        """Percent, by server; without the servers that the proxy does not know."""
        return self.route.weights if self.route is not None else {}

    @property
    def intended_weights(self) -> Mapping[str, int]:
        """The shares without a failover."""
        return self.intended.weights if self.intended is not None else {}

    @property
    def carriers(self) -> tuple[str, ...]:
        """The names of the servers with a share."""
        return tuple(name for name, weight in self.weights.items() if weight)
