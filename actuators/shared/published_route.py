"""The route of one target as the daemon publishes it: a ConfigMap, which every Envoy pod reads.

The ConfigMap is the channel: a write is conditional on the version that was read, so that an older daemon
cannot overwrite a newer one's route. Pods render Envoy's files from it themselves, so that a pod and a daemon
of two releases work together.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from uuid import uuid4

from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import FencedError
from flettner.agent.domain.model import Hold, Server

Json = dict[str, Any]

PROXY: Final = "flettner.dev/proxy"  # label: the Deployment whose pods read the ConfigMap
TARGET: Final = "flettner.dev/target"  # label
_KEY = "route.json"
_FORMAT = 1


def object_name(deployment: str, target: str) -> str:
    return f"{deployment}-{target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRoute:
    """One write. `write`: its own id; a write with the same route renews the lease.

    The lease has no time of day: clocks of nodes differ. It begins again in each pod that sees a new write.
    """

    target: str
    epoch: int
    process: str  # distinguishes two daemons that started at once with the same epoch
    listen: str
    session_header: str
    report_every_s: float
    route: Route
    open_routes: tuple[str, ...] = ()
    hold: Hold | None = None
    lease_ended: bool = False
    write: str = ""

    def renewed(self) -> Self:
        return replace(self, write=uuid4().hex)

    def ended(self) -> Self:
        """The same without the lease's share; the next daemon may renew it."""
        return replace(self.renewed(), lease_ended=True)

    def refuse_older(self, epoch: int, process: str) -> None:
        """Raises FencedError unless that daemon may write after this one."""
        if self.epoch > epoch:
            raise FencedError(
                f"the route of {self.target} is of epoch {self.epoch}, this daemon is {epoch}: "
                "a newer one has taken over"
            )
        if self.epoch == epoch and self.process != process:
            raise FencedError(f"another daemon of the same epoch {epoch} has published the route")

    def carries(self, wanted: "PublishedRoute") -> bool:
        """Whether pods act on it as on the wanted one; the daemon and the write may differ."""
        return self.content() == wanted.content()

    def content(self) -> Json:
        """What pods act on. Settings of servers are not published."""
        return {
            "listen": self.listen,
            "session_header": self.session_header,
            "report_every_s": self.report_every_s,
            "open_routes": list(self.open_routes),
            "hold": self.hold and {"wait_s": self.hold.wait_s, "requests": self.hold.requests},
            "lease_ended": self.lease_ended,
            "route": _describe(self.route),
        }

    def to_object(self, deployment: str) -> Json:
        """The ConfigMap."""
        content = {
            "format": _FORMAT,
            "write": self.write,
            "epoch": self.epoch,
            "process": self.process,
            **self.content(),
        }
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": object_name(deployment, self.target),
                "labels": {PROXY: deployment, TARGET: self.target},
            },
            "data": {_KEY: json.dumps(content, indent=1)},
        }

    @classmethod
    def parse(cls, document: Json) -> Self:
        """Parse a ConfigMap. Raises ValueError."""
        try:
            content = json.loads(document["data"][_KEY])
            _check_format(content["format"])
            return cls(
                target=str(document["metadata"]["labels"][TARGET]),
                epoch=int(content["epoch"]),
                process=str(content["process"]),
                listen=str(content["listen"]),
                session_header=str(content["session_header"]),
                report_every_s=float(content["report_every_s"]),
                open_routes=tuple(str(name) for name in content["open_routes"]),
                hold=_parse_hold(content["hold"]),
                lease_ended=content["lease_ended"] is True,
                write=str(content["write"]),
                route=_parse_route(content["route"]),
            )
        except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
            raise ValueError(f"not a route that flettner published: {error!r}") from error


def _check_format(number: object) -> None:
    if number != _FORMAT:
        raise ValueError(f"format {number!r}, known is {_FORMAT}")


def _parse_hold(content: Json | None) -> Hold | None:
    if content is None:
        return None
    return Hold(wait_s=float(content["wait_s"]), requests=int(content["requests"]))


def _describe(route: Route) -> Json:
    return {
        "number": route.number,
        "servers": [{"name": server.name, "address": server.address} for server in route.servers],
        "weights": dict(route.weights),
        "fallback": route.fallback,
        "closed_s": route.closed_s,
        "leased": route.leased,
        "lease_s": route.lease_s,
    }


def _parse_route(content: Json) -> Route:
    return Route(
        number=int(content["number"]),
        servers=tuple(
            Server(name=str(server["name"]), setting={}, address=str(server["address"]))
            for server in content["servers"]
        ),
        weights={str(name): int(weight) for name, weight in content["weights"].items()},
        fallback=str(content["fallback"]),
        closed_s=float(content["closed_s"]),
        leased=None if content["leased"] is None else str(content["leased"]),
        lease_s=float(content["lease_s"]),
    )
