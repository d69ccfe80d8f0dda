"""`[targets.git]`: the repository in which a target's command lives, and its forge, a module of `forges/`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flettner.agent.config.listen import Role
from flettner.agent.config.notify import resolve_secret_file
from flettner.agent.config.plugin_tables import BuildPlugin
from flettner.agent.config.tables import GitTable
from flettner.agent.domain.errors import ForgeError
from flettner.primitives.files import read_file

LONGEST_TOKEN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class GitOptions:
    repository: str
    branch: str
    path: str
    server: str  # in the file; empty: its only one
    forge: Any  # a flettner.agent.gitops.forge.Forge
    token_file: Path | None = None
    people: Mapping[str, tuple[str, Role]] = field(default_factory=dict)  # by their login

    def read_token(self) -> str:
        """Empty without a file. Raises ForgeError."""
        if self.token_file is None:
            return ""
        try:
            return read_file(self.token_file, LONGEST_TOKEN).decode().strip()
        except (OSError, ValueError) as error:  # whose text may hold bytes of the token
            why = getattr(error, "strerror", "") or type(error).__name__
            raise ForgeError(f"{self.token_file}: cannot be read: {why}") from None


def build_git(table: GitTable, here: Path, build: BuildPlugin, where: str) -> GitOptions:
    """Build the options of the table that `where` names. Raises ConfigError."""
    token_file = resolve_secret_file("token_file", table.token_file, here)
    return GitOptions(
        repository=table.repository,
        branch=table.branch,
        path=table.path,
        server=table.server,
        forge=build("forges", table.forge, table.model_extra or {}, table=where),
        token_file=Path(str(token_file)) if token_file else None,
        people=table.people,
    )
