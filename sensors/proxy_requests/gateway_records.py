"""Requests from the access logs of gateways made of Envoy: which are the target's, and which server had them.

A record is a set of attributes, by the names in docs/kubernetes.md. It comes when the request has ended, and
tells of its last attempt only. Pure.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from flettner.agent.domain.errors import SensorError
from flettner.clients.envoy_records.record import ENDED, REQUESTS, Field
from flettner.primitives.address import Address
from flettner.sensors.proxy_requests.access_log import AccessRecord, classify, parse_record

KEPT_S: Final = 600.0
"""For which an address stays that of a server whose pods have left its name: the longest drain, and more."""

_NONE: Final = "-"  # Envoy's word for an empty value
_OF_SERVICE: Final = re.compile(
    r"outbound\|\d*\|[^|]*\|(?P<service>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc\b"
)
_OF_RULE: Final = re.compile(r"httproute/(?P<owner>[^/]+/[^/]+)/rule/(?P<place>\d+)(/.*)?")
Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteNames:
    """The names that gateways give to the rules of one HTTPRoute in Envoy.

    Envoy Gateway: `httproute/NAMESPACE/ROUTE/rule/0/match/0/HOST`. Istio: `NAMESPACE.ROUTE.0`, or the name of
    the rule if it has one. `rule`: the name of a rule or its place; empty: every rule.
    """

    namespace: str
    route: str
    rule: str = ""

    def include(self, name: str) -> bool:
        if rule := _OF_RULE.fullmatch(name):
            return rule["owner"] == f"{self.namespace}/{self.route}" and self._is_rule(rule["place"])
        owner, _, place = name.rpartition(".")
        if owner == f"{self.namespace}.{self.route}" and place.isdecimal():
            return self._is_rule(place)
        return bool(self.rule) and not self.rule.isdecimal() and name == self.rule

    def _is_rule(self, place: str) -> bool:
        return place == self.rule or not self.rule.isdecimal()


@dataclass(slots=True)
class ServerAddresses:
    """The addresses of pods, by server; addresses of ended pods stay for a while."""

    _servers: dict[Address, tuple[str, float]] = field(default_factory=dict)  # server, and when it had it
    _services: dict[tuple[str, str], str] = field(default_factory=dict)  # by name and namespace

    def update(self, server: str, address: str, behind: tuple[str, ...], now_s: float) -> None:
        """`address`: such as `vllm.chat.svc:8000`; `behind`: the `HOST:PORT` of its pods now."""
        name, _, rest = Address.parse(address).host.partition(".")
        self._services[name, rest.partition(".")[0]] = server
        for pod in behind:
            self._servers[Address.parse(pod)] = server, now_s
        self._servers = {key: value for key, value in self._servers.items() if now_s - value[1] < KEPT_S}

    def server_of(self, host: str, cluster: str) -> str:
        """The server by the pod's address, else by the Service in Istio's cluster; "" if unknown."""
        with suppress(ValueError):  # - in place of an address
            address = Address.parse(host)
            if address in self._servers:
                return self._servers[address][0]
            servers = {server for place, (server, _) in self._servers.items() if place.host == address.host}
            if len(servers) == 1:
                return servers.pop()
        service = _OF_SERVICE.match(cluster)
        return self._services.get((service["service"], service["namespace"]), "") if service else ""


def read_record(attributes: Attributes, addresses: ServerAddresses) -> AccessRecord:
    """Raises SensorError for a record of another format."""
    host, cluster = attributes.get("upstream_host", _NONE), attributes.get("upstream_cluster", _NONE)
    first_byte = attributes.get("first_byte_us", _NONE)
    record = parse_record(
        REQUESTS,
        {
            Field.ID: "",
            Field.SERVER: addresses.server_of(host, cluster),
            Field.PATH: attributes.get("path"),
            Field.CODE: _number(attributes, "response_code"),
            Field.FLAGS: attributes.get("response_flags"),
            Field.ATTEMPTS: 0,
            Field.TYPE: ENDED,
            Field.DURATION_MS: _number(attributes, "duration"),
            Field.TTFT_US: None if first_byte == _NONE else first_byte,
        },
    )
    if record.ttft_s is None and classify(record, record) == "ok":
        raise SensorError(
            "a record without first_byte_us, "
            "%COMMON_DURATION(US_TX_BEG:US_RX_BODY_BEG:us)%: Envoy has it from 1.37 on"
        )
    return record


def has_lost_its_server(record: AccessRecord, attributes: Attributes) -> bool:
    """True if it is unknown which server answered or failed a request.

    A client that leaves before a server is chosen says nothing about any, nor does a refusal of the gateway.
    """
    if record.server:
        return False
    chosen = attributes.get("upstream_host", _NONE) != _NONE
    return chosen or classify(record, record) == "failed"


def _number(attributes: Attributes, name: str) -> float:
    text = attributes.get(name)
    if text is None:
        raise SensorError(f"a record without {name} (it has {', '.join(sorted(attributes)) or 'nothing'})")
    try:
        return 0 if text == _NONE else float(text)
    except ValueError as error:
        raise SensorError(f"a record whose {name} is {text!r}") from error
