"""Check the types of what a third-party policy returns: the guard and the journal rely on them."""

from dataclasses import asdict, fields
from typing import Any

from flettner.agent.domain.digest import digest
from flettner.agent.domain.model import Evidence, Proposal


class MalformedProposalError(Exception):
    """A policy returned something else than a Proposal with values of the declared types."""


def check_proposal(proposal: object) -> Proposal:
    """Return a plain Proposal of the same content. Raises MalformedProposalError, naming the field."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - `flettner lint` needs none

    if not isinstance(proposal, Proposal):
        raise MalformedProposalError(f"propose returned {proposal!r:.80}, which is no Proposal")
    given: dict[str, Any] = {one.name: getattr(proposal, one.name) for one in fields(Proposal)}
    if isinstance(given["evidence"], list | tuple):
        given["evidence"] = tuple(
            asdict(one) if isinstance(one, Evidence) else one for one in given["evidence"]
        )
    try:
        plain = TypeAdapter(Proposal).validate_python(given)
        digest(asdict(plain))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise MalformedProposalError(f"a Proposal has a wrong {field}: {first['msg']}") from error
    except ValueError as error:
        raise MalformedProposalError(f"a Proposal has a number that JSON cannot carry: {error}") from error
    return plain
