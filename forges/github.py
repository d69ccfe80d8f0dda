"""GitHub, also GitHub Enterprise Server. https://docs.github.com/en/rest/pulls/pulls."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from flettner.agent.gitops.forge import PullRequestText
from flettner.forges.shared.pulls_api import PullsApi


@dataclass(frozen=True, slots=True, kw_only=True)
class Github(PullsApi):
    api: str = "https://api.github.com"  # of GitHub Enterprise Server: https://HOST/api/v3

    def headers(self, token: str) -> Mapping[str, str]:
        return {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }

    def query_of_branch(self, text: PullRequestText) -> str:
        owner = self.project.partition("/")[0]
        return "?" + urlencode({"head": f"{owner}:{text.branch}", "base": text.base, "state": "open"})


plugin = Github
