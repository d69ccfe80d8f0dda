"""The REST API of pull requests that GitHub has, and Gitea and Forgejo like it."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flettner.agent.domain.errors import ForgeError
from flettner.agent.gitops.forge import PullRequest, PullRequestText
from flettner.forges.shared.client import call
from flettner.forges.shared.options import check_address, check_project

EXISTS = (409, 422)  # for this branch


@dataclass(frozen=True, slots=True, kw_only=True)
class PullsApi:
    project: str  # OWNER/NAME
    api: str

    def __post_init__(self) -> None:
        check_address(self.api)
        check_project(self.project)

    @abstractmethod
    def headers(self, token: str) -> Mapping[str, str]: ...

    @abstractmethod
    def query_of_branch(self, text: PullRequestText) -> str:
        """The path below `pulls` that lists, or is, the pull request of a branch."""

    @property
    def pulls(self) -> str:
        return f"{self.api.rstrip('/')}/repos/{self.project}/pulls"

    async def check(self, token: str) -> None:
        await call("GET", f"{self.pulls}?state=open", self.headers(token))

    async def open(self, text: PullRequestText, token: str) -> PullRequest:
        body = {"title": text.title, "body": text.body, "head": text.branch, "base": text.base}
        status, made = await call("POST", self.pulls, self.headers(token), body, also=EXISTS)
        if status not in EXISTS:
            return read_pull(made)
        _, listed = await call("GET", self.pulls + self.query_of_branch(text), self.headers(token))
        pulls = listed if isinstance(listed, list) else [listed]
        for pull in map(read_pull, pulls):
            if pull.state == "open":
                return pull
        told = made.get("message") if isinstance(made, dict) else ""
        raise ForgeError(f"{self.pulls} refused the pull request of {text.branch}: {str(told)[:200]}")

    async def read(self, number: int, token: str) -> PullRequest:
        return read_pull((await call("GET", f"{self.pulls}/{number}", self.headers(token)))[1])

    async def rewrite(self, number: int, text: PullRequestText, token: str) -> None:
        body = {"title": text.title, "body": text.body}
        await call("PATCH", f"{self.pulls}/{number}", self.headers(token), body)

    async def close(self, number: int, token: str) -> None:
        await call("PATCH", f"{self.pulls}/{number}", self.headers(token), {"state": "closed"})


def read_pull(document: Any) -> PullRequest:  # noqa: ANN401 - any JSON
    """Raises ForgeError."""
    try:
        merged = bool(document.get("merged") or document.get("merged_at"))
        state: Literal["open", "closed"] = "open" if document["state"] == "open" else "closed"
        return PullRequest(
            number=int(document["number"]),
            url=str(document["html_url"]),
            state="merged" if merged else state,
            head=str(document["head"]["sha"]),
            base=str(document["base"]["ref"]),
            merged_by=str((document.get("merged_by") or {}).get("login") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ForgeError(f"the answer is no pull request: {type(error).__name__}") from None
