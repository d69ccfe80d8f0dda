"""Why flettner cannot split an HTTPRoute, each with the fix: for `flettner check` and the start."""

from contextlib import suppress
from typing import Final

from flettner.actuators.gateway.acceptance import find_refusals, find_waiting
from flettner.actuators.gateway.backends import Backends
from flettner.actuators.gateway.guard_sign import BEAT_S, GuardSign
from flettner.actuators.gateway.record import record_of
from flettner.actuators.gateway.rules import choose_rules, home_of, rule_obstacles
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import AwayError, ConflictError, MissingError

NO_GUARD: Final = (
    "no guard gives a sign of life: a canary's share would stay if this daemon died; start the Deployment of "
    "`python -m flettner.actuators.gateway.guard`"
)


async def find_problems(
    client: KubernetesClient, name: str, *, rule: str, key: str, guard: GuardSign
) -> list[str]:
    """Raises ActError if the API server refuses to answer."""
    try:
        document = await client.get(kubernetes.HTTP_ROUTE, name)
        if document is None:
            return [await _explain_missing(client, name)]
        problems = await _find_rule_problems(client, document, rule, key)
        problems += [f"HTTPRoute {name}: {why}" for why in find_refusals(document) or find_waiting(document)]
        await _check_right(client, document)
        record = record_of(document, key)
        if record is not None and record.leased and not record.ended:
            return problems  # a daemon that returns to a canary must start, to end it
        if not await guard.wait(3 * BEAT_S):
            problems.append(NO_GUARD)
    except AwayError:
        return []  # says nothing about the configuration; a daemon waits for the API server
    return problems


async def _explain_missing(client: KubernetesClient, name: str) -> str:
    try:
        names = [route["metadata"]["name"] for route in await client.find(kubernetes.HTTP_ROUTE)]
    except MissingError:
        return "the cluster has no Gateway API (gateway.networking.k8s.io/v1): install it, and a gateway"
    routes = ", ".join(sorted(names)) or "none"
    namespace = await client.own_namespace()
    return f"route: there is no HTTPRoute {name} in the namespace {namespace} (there are: {routes})"


async def _find_rule_problems(client: KubernetesClient, document: Json, rule: str, key: str) -> list[str]:
    record = record_of(document, key)
    try:
        rules = choose_rules(document, rule)
        home = record.home if record else home_of(document, rules)
    except ActError as error:
        return [str(error)]
    problems = rule_obstacles(document, rules, home, await client.own_namespace())
    return problems or await find_service_problems(client, home)


async def find_service_problems(client: KubernetesClient, home: Backends) -> list[str]:
    problems = []
    for backend in home:
        service = await client.get(kubernetes.SERVICE, backend["name"])
        if service is None:
            problems.append(f"there is no Service {backend['name']}, which the rule names")
        elif not (service.get("spec") or {}).get("selector"):
            problems.append(f"the Service {backend['name']} has no selector: flettner cannot know its pods")
        elif "flettner.dev/server" in (service["metadata"].get("labels") or {}):
            problems.append(f"the rule names {backend['name']}, a Service of flettner's: name your own")
    return problems


async def _check_right(client: KubernetesClient, document: Json) -> None:
    """Ask with a patch that changes nothing. Raises ActError."""
    metadata = document["metadata"]
    same: Json = {"metadata": {"resourceVersion": metadata["resourceVersion"]}}
    with suppress(ConflictError):  # it may be written, and was meanwhile
        await client.patch(kubernetes.HTTP_ROUTE, metadata["name"], same)
