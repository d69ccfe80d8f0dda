"""The rules of an HTTPRoute that are the target's, and why they cannot be split. Pure."""

from flettner.actuators.gateway.backends import Backends, complete, describe_backends, find_obstacles
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.documents import Json


def choose_rules(document: Json, rule: str) -> list[int]:
    """The places of the rules that the option names; without it: of all. Raises ActError."""
    rules = document.get("spec", {}).get("rules") or []
    named = [one.get("name", "") for one in rules]
    if rule.isdecimal() and int(rule) < len(rules):
        return [int(rule)]
    if rule and rule in named:
        return [named.index(rule)]
    name = document["metadata"]["name"]
    if rule:
        known = ", ".join(filter(None, named)) or "none has a name"
        raise ActError(
            f"HTTPRoute {name} has no rule {rule!r} (it has {len(rules)}; {known}): set `rule` to the name "
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
    found = [backends_of(document, at) for at in rules]
    if any(one != found[0] for one in found):
        raise ActError(
            f"the rules of HTTPRoute {document['metadata']['name']} have different backends, "
            f"{'; '.join(describe_backends(one) for one in found)}: name the target's with `rule`",
            external=True,
        )
    return found[0]


def rule_obstacles(document: Json, rules: list[int], home: Backends, namespace: str) -> list[str]:
    """Why these rules cannot be split, with the fix each. `home`: their backends as people wrote them."""
    found = find_obstacles(home, namespace)
    services = {one["name"] for one in home}
    for at, rule in enumerate(document["spec"]["rules"]):
        where = f"rule {rule.get('name') or at}"
        if at not in rules and services & {one["name"] for one in rule.get("backendRefs") or ()}:
            found.append(
                f"{where} sends requests to {', '.join(sorted(services))} too: they would pass by the split "
                "and fail while its pods restart; leave out `rule`, or send them elsewhere"
            )
        if at not in rules:
            continue
        if "sessionPersistence" in rule:
            found.append(
                f"{where} has sessionPersistence: sessions would stay on a bad server whatever its weight; "
                "remove it"
            )
        if services & _mirrors(rule):
            found.append(
                f"{where} mirrors requests to {', '.join(sorted(services))}: the counts would be wrong"
            )
    return found


def _mirrors(rule: Json) -> set[str]:
    """The Services that get copies of requests."""
    filters = [*(rule.get("filters") or ())]
    for backend in rule.get("backendRefs") or ():
        filters += backend.get("filters") or ()
    mirrored = (one["requestMirror"] for one in filters if "requestMirror" in one)
    return {str(one.get("backendRef", {}).get("name", "")) for one in mirrored}
