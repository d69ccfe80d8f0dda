"""Network access of a container: networks, aliases, published ports, links."""

import re
from collections.abc import Iterator

from flettner.tools.docker_proxy.fields import (
    FieldContext,
    FieldTable,
    Reasons,
    each,
    fields,
    find_refusals,
    nothing,
    number,
    shown,
    text,
    values,
)
from flettner.tools.docker_proxy.strict_json import Json

_SHORT_ID = re.compile(r"[0-9a-f]{12}")
_DEFAULT = "bridge"


def network_mode(where: str, value: object, context: FieldContext) -> Reasons:
    """The engine resolves the network later: an id may stand for the host's network."""
    if not isinstance(value, str):
        yield f"{where}: must be a string"
    elif value.partition(":")[0] in ("container", "service"):
        yield f"{where}: the network of another container"
    elif value == "host" and not context.policy.networks.host:
        yield f"{where}: the host's network (networks.host is false)"
    elif ":" in value or "/" in value:
        yield f"{where}: {shown(value)} is not the name of a network"


def aliases(where: str, value: object, context: FieldContext) -> Reasons:
    """An alias attracts traffic, so only flettner's own names and the listed names are allowed."""
    if not isinstance(value, list):
        yield f"{where}: must be a list"
        return
    for alias in value:
        yield from alias_of_ours(where, alias, context)


def alias_of_ours(where: str, value: object, context: FieldContext) -> Reasons:
    if not isinstance(value, str):
        yield f"{where}: must be a string"
    elif value and not _SHORT_ID.fullmatch(value) and not context.policy.allows_alias(value):
        yield f"{where}: {shown(value)} is not in the policy's networks.aliases"


ENDPOINT: FieldTable = {
    "Aliases": aliases,
    "DNSNames": aliases,
    "IPAMConfig": fields({"IPv4Address": text, "IPv6Address": text, "LinkLocalIPs": each(text)}),
    "Links": nothing,
    "DriverOpts": nothing,
    "MacAddress": text,
    "GwPriority": number,
    # What the engine itself fills in, and inspect shows.
    **dict.fromkeys(("NetworkID", "EndpointID", "Gateway", "IPAddress", "IPv6Gateway"), text),
    "GlobalIPv6Address": text,
    **dict.fromkeys(("IPPrefixLen", "GlobalIPv6PrefixLen"), number),
}
NETWORKING: FieldTable = {"EndpointsConfig": values(fields(ENDPOINT), r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")}


def connect_reasons(body: Json, context: FieldContext) -> Reasons:
    """Return the reasons against POST /networks/{id}/connect."""
    return find_refusals("", body, {"Container": text, "EndpointConfig": fields(ENDPOINT)}, context)


def disconnect_reasons(body: Json, context: FieldContext) -> Reasons:
    force = {"Container": text, "Force": lambda *_: iter(())}
    return find_refusals("", body, force, context)


def ports(where: str, value: object, context: FieldContext) -> Reasons:
    yield from values(each(_port), r"[0-9]{1,5}(/(tcp|udp|sctp))?")(where, value, context)


def _port(where: str, value: object, context: FieldContext) -> Reasons:
    yield from find_refusals(where, value, {"HostIp": text, "HostPort": _host_port}, context)
    if isinstance(value, dict):
        address = value.get("HostIp") or "0.0.0.0"  # noqa: S104 - what the engine makes of it
        if address not in context.policy.networks.publish:
            yield f"{where}: publishes on {shown(address)}, which is not in the policy's networks.publish"


def _host_port(where: str, value: object, _: FieldContext) -> Reasons:
    if not isinstance(value, str) or not re.fullmatch(r"([0-9]{1,5}(-[0-9]{1,5})?)?", value):
        yield f"{where}: {shown(value)} is not a port"


def publish_all(where: str, value: object, context: FieldContext) -> Reasons:
    if value and "0.0.0.0" not in context.policy.networks.publish:  # noqa: S104
        yield f"{where}: publishes on every address of the host"


def links(where: str, value: object, context: FieldContext) -> Reasons:
    """A link reveals the other container's environment, including secrets."""
    if not isinstance(value, list):
        yield f"{where}: must be a list"
        return
    for link in value:
        if not isinstance(link, str) or link.lstrip("/").split(":")[0] not in context.policy.networks.links:
            yield f"{where}: {shown(link)} is not in the policy's networks.links"


def networks_named(body: Json) -> Iterator[str]:
    """Yield the networks of an accepted create body."""
    mode = (body.get("HostConfig") or {}).get("NetworkMode")
    yield _DEFAULT if mode in (None, "", "default") else mode
    for name in (body.get("NetworkingConfig") or {}).get("EndpointsConfig") or {}:
        yield _DEFAULT if name == "default" else name
