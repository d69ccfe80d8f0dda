"""The people who may decide in another service: by their id there, their name in the audit and their role."""

from collections.abc import Mapping

from flettner.agent.api.tokens import Holder
from flettner.agent.config.listen import Role, check_principal

People = Mapping[str, tuple[str, Role]]
"""By their id at the service."""


def check_people(people: People) -> None:
    """Raises ValueError."""
    for id_, (name, _) in people.items():
        try:
            check_principal(name)
        except ValueError as error:
            raise ValueError(f"people.{id_}: the name {error}") from None


def find_person(people: People, id_: str) -> Holder | None:
    if id_ not in people:
        return None
    name, role = people[id_]
    return Holder(id=f"person {name}", role=role, principal=name)
