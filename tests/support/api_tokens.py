"""API tokens of a test: one for each role, in a file as the daemon reads it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from flettner.agent.api.tokens import mint_token, store_tokens
from flettner.agent.config.listen import Role

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")


def store_roles(file: Path, principal: str = "{role} ann") -> Mapping[Role, str]:
    """Write the file with a token of each role; return the texts that the callers send."""
    texts, tokens = {}, []
    for role in ROLES:
        texts[role], token = mint_token(
            role=role,
            principal=principal.format(role=role),
            made_at=datetime.fromtimestamp(0, UTC),
            expires=None,
        )
        tokens.append(token)
    store_tokens(file, tokens)
    return texts
