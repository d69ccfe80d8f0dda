"""What the gateways say about an HTTPRoute: `status.parents`, an entry for each. Pure."""

from flettner.clients.kubernetes.documents import Json

_NEEDED = ("Accepted", "ResolvedRefs")


def find_refusals(document: Json) -> list[str]:
    """What a gateway says against the HTTPRoute as it is now, or as it was before its latest change."""
    return [
        f"the gateway {_name(parent)} has {condition['type']}={condition['status']} "
        f"({condition.get('reason', 'no reason')}: {condition.get('message', '')})"
        for parent in _parents(document)
        for condition in parent.get("conditions") or ()
        if condition["type"] in _NEEDED and condition["status"] == "False"
    ]


def find_waiting(document: Json) -> list[str]:
    """The gateways that have not accepted the latest change yet."""
    generation = document["metadata"].get("generation", 0)
    parents = _parents(document)
    if not parents:
        return ["no gateway reports on it"]
    return [
        f"the gateway {_name(parent)} has not accepted it"
        for parent in parents
        if not _accepts(parent, generation)
    ]


def is_current(document: Json) -> bool:
    """Whether every gateway has seen the latest change, whatever it thinks of it."""
    generation = document["metadata"].get("generation", 0)
    seen = [
        condition.get("observedGeneration", 0) >= generation
        for parent in _parents(document)
        for condition in parent.get("conditions") or ()
        if condition["type"] in _NEEDED
    ]
    return bool(seen) and all(seen)


def _accepts(parent: Json, generation: int) -> bool:
    conditions = {condition["type"]: condition for condition in parent.get("conditions") or ()}
    accepted = conditions.get("Accepted", {})
    resolved = conditions.get("ResolvedRefs", {"status": "True", "observedGeneration": generation})
    return all(
        condition.get("status") == "True" and condition.get("observedGeneration", 0) >= generation
        for condition in (accepted, resolved)
    )


def _parents(document: Json) -> list[Json]:
    parents: list[Json] = (document.get("status") or {}).get("parents") or []
    return parents


def _name(parent: Json) -> str:
    of = parent.get("parentRef") or {}
    section = f", listener {of['sectionName']}" if "sectionName" in of else ""
    return f"{of.get('name', 'unnamed')}{section}"
