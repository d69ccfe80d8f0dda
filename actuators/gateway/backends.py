"""The `backendRefs` of a rule of an HTTPRoute: those that people wrote, and those that a split needs. Pure.

Checked against the CRDs of the Gateway API 1.0.0, 1.1.0, 1.2.1, 1.3.0, 1.4.0, 1.5.0 and 1.6.1, channel
standard: at most 16 backends of a rule, weights from 0 to 1,000,000, a port for each Service.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.documents import Json

MOST: Final = 16  # backendRefs of a rule
HEAVIEST: Final = 1_000_000

_DEFAULTS: Final = {"kind": "Service", "weight": 1}
_ADDRESS = re.compile(r"\A(?P<service>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc:(?P<port>[0-9]+)")

Backends = Sequence[Json]


def complete(backends: Iterable[Json]) -> list[Json]:
    """In one form, so that equal backends are equal documents: with the API's defaults, without group ""."""
    return [
        {**_DEFAULTS, **{key: value for key, value in backend.items() if (key, value) != ("group", "")}}
        for backend in backends
    ]


def service_of(address: str, namespace: str) -> tuple[str, int]:
    """The name and the port of the Service at a server's address. Raises ActError."""
    match = _ADDRESS.fullmatch(address)
    if match is None or match["namespace"] != namespace:
        raise ActError(
            f"a gateway sends requests to Services of the namespace {namespace}, and "
            f"{address or 'no address'} is none: "
            'use [targets.engine] kind = "kubernetes" in the same namespace'
        )
    return match["service"], int(match["port"])


def split_backends(route: Route, weights: Mapping[str, int], pattern: Json, namespace: str) -> list[Json]:
    """A backend for each server with a weight; for all servers of a closed route, with weight 0.

    Each is like `pattern`, the backend that people wrote, and so has its filters. Raises ActError.
    """
    chosen = [server for server in route.servers if weights.get(server.name, 0) or route.closed_s]
    if len(chosen) > MOST:
        raise ActError(f"{len(chosen)} servers have a weight, and a rule of an HTTPRoute has at most {MOST}")
    made = []
    for server in chosen:
        name, port = service_of(server.address, namespace)
        made.append({**pattern, "name": name, "port": port, "weight": weights.get(server.name, 0)})
    return complete(made)


def describe_backends(backends: Backends) -> str:
    """Such as `vllm:8000 (95), flettner-chat-r1-1f02ab:8000 (5)`."""
    named = (
        f"{backend.get('name')}:{backend.get('port')} ({backend.get('weight', 1)})" for backend in backends
    )
    return ", ".join(named) or "none"


def find_obstacles(backends: Backends, namespace: str) -> list[str]:
    """Why flettner cannot split a rule with these backends, each with the fix; empty if it can."""
    if not backends:
        return ["the rule has no backendRefs: name the Service of your vLLM pods"]
    if len(backends) > 1:
        problem = f"the rule has several backends, {describe_backends(backends)}"
        fix = "flettner splits a rule whose only backend is the Service of the target's pods"
        return [f"{problem}: {fix}; move the other backends to a rule of their own"]
    (backend,) = complete(backends)
    name = backend["name"]
    if "group" in backend or backend["kind"] != "Service":
        return [f"the backend {name} is a {backend['kind']}, not a Service: name the Service of the pods"]
    if backend.get("namespace", namespace) != namespace:
        return [f"the Service {name} is in another namespace, {backend['namespace']}: use one of {namespace}"]
    if not 0 < backend["weight"] <= HEAVIEST:
        return [
            f"the weight of {name} is {backend['weight']}: a target at rest gets all requests of its rule"
        ]
    return []
