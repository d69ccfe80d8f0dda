"""The rules of an HTTPRoute that are the target's, and why they cannot be split. Pure."""

from flettner.actuators.gateway.backends import Backends, complete, describe_backends, find_obstacles
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.documents import Json


def choose_rules(document: Json, rule: str) -> list[int]:
    """The places of the rules that the option names; without it: of all. Raises ActError."""
    rules = document.get("spec", {}).get("rules") or []
    named = [candidate.get("name", "") for candidate in rules]
    if rule.isdecimal() and int(rule) < len(rules):
        return [int(rule)]
    if rule and rule in named:
        return [named.index(rule)]
    name = document["metadata"]["name"]
    if rule:
        names = ", ".join(filter(None, named)) or "none has a name"
        raise ActError(
            f"HTTPRoute {name} has no rule {rule!r} (it has {len(rules)}; {names}): set `rule` to the name "
            'of one, or to its place, "0" for the first',
            external=True,
        )
    if not rules:
        raise ActError(f"HTTPRoute {name} has no rules: give it one for your Service", external=True)
    return list(range(len(rules)))


def backends_of(document: Json, at: int) -> list[Json]:
    return complete(document["spec"]["rules"][at].get("backendRefs") or [])


def home_of(document: Json, rules: list[int]) -> Backends:
    """The one list of backends that all the rules have. Raises ActError."""
    backends = [backends_of(document, at) for at in rules]
    if any(listed != backends[0] for listed in backends):
        raise ActError(
            f"the rules of HTTPRoute {document['metadata']['name']} have different backends, "
            f"{'; '.join(describe_backends(listed) for listed in backends)}: name the target's with `rule`",
            external=True,
        )
    return backends[0]


def rule_obstacles(document: Json, rules: list[int], home: Backends, namespace: str) -> list[str]:
    """Why these rules cannot be split, with the fix each. `home`: their backends as people wrote them."""
    problems = find_obstacles(home, namespace)
    services = {backend["name"] for backend in home}
    for at, rule in enumerate(document["spec"]["rules"]):
        where = f"rule {rule.get('name') or at}"
        if at not in rules and services & {ref["name"] for ref in rule.get("backendRefs") or ()}:
            problems.append(
                f"{where} sends requests to {', '.join(sorted(services))} too: they would pass by the split "
                "and fail while its pods restart; leave out `rule`, or send them elsewhere"
            )
        if at not in rules:
            continue
        if "sessionPersistence" in rule:
            problems.append(
                f"{where} has sessionPersistence: sessions would stay on a bad server whatever its weight; "
                "remove it"
            )
        if services & _mirrors(rule):
            problems.append(
                f"{where} mirrors requests to {', '.join(sorted(services))}: the counts would be wrong"
            )
    return problems


def _mirrors(rule: Json) -> set[str]:
    """The Services that get copies of requests."""
    filters = [*(rule.get("filters") or ())]
    for backend in rule.get("backendRefs") or ():
        filters += backend.get("filters") or ()
    mirrored = (route_filter["requestMirror"] for route_filter in filters if "requestMirror" in route_filter)
    return {str(mirror.get("backendRef", {}).get("name", "")) for mirror in mirrored}
