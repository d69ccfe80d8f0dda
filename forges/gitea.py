"""Gitea and Forgejo. https://docs.gitea.com/api/: repository, pulls."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from flettner.agent.gitops.forge import PullRequestText
from flettner.forges.shared.pulls_api import PullsApi


@dataclass(frozen=True, slots=True, kw_only=True)
class Gitea(PullsApi):
    api: str  # https://HOST/api/v1

    def headers(self, token: str) -> Mapping[str, str]:
        return {"Authorization": f"token {token}"}

    def query_of_branch(self, text: PullRequestText) -> str:
        return f"/{quote(text.base, safe='')}/{quote(text.branch, safe='')}"


plugin = Gitea
