"""GitLab, whose pull requests are merge requests. https://docs.gitlab.com/api/merge_requests/."""

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

from flettner.agent.domain.errors import ForgeError
from flettner.agent.gitops.forge import PullRequest, PullRequestText
from flettner.forges.shared.client import call
from flettner.forges.shared.options import check_address, check_project

EXISTS = 409  # for this branch
_STATES: dict[str, Literal["open", "merged", "closed"]] = {
    "opened": "open",
    "locked": "open",  # being merged
    "merged": "merged",
    "closed": "closed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gitlab:
    project: str  # GROUP/NAME, with subgroups
    api: str = "https://gitlab.com/api/v4"

    def __post_init__(self) -> None:
        check_address(self.api)
        check_project(self.project)

    @property
    def _requests(self) -> str:
        return f"{self.api.rstrip('/')}/projects/{quote(self.project, safe='')}/merge_requests"

    async def check(self, token: str) -> None:
        await call("GET", f"{self._requests}?state=opened", _headers(token))

    async def open(self, text: PullRequestText, token: str) -> PullRequest:
        body = {
            "source_branch": text.branch,
            "target_branch": text.base,
            "title": text.title,
            "description": text.body,
            "remove_source_branch": True,
        }
        status, made = await call("POST", self._requests, _headers(token), body, also=(EXISTS,))
        if status != EXISTS:
            return _read(made)
        query = urlencode({"source_branch": text.branch, "target_branch": text.base, "state": "opened"})
        _, listed = await call("GET", f"{self._requests}?{query}", _headers(token))
        for document in listed if isinstance(listed, list) else ():
            return _read(document)
        raise ForgeError(f"{self._requests} refused the merge request of {text.branch}")

    async def read(self, number: int, token: str) -> PullRequest:
        return _read((await call("GET", f"{self._requests}/{number}", _headers(token)))[1])

    async def rewrite(self, number: int, text: PullRequestText, token: str) -> None:
        body = {"title": text.title, "description": text.body}
        await call("PUT", f"{self._requests}/{number}", _headers(token), body)

    async def close(self, number: int, token: str) -> None:
        await call("PUT", f"{self._requests}/{number}", _headers(token), {"state_event": "close"})


def _headers(token: str) -> dict[str, str]:
    return {"PRIVATE-TOKEN": token}


def _read(document: Any) -> PullRequest:  # noqa: ANN401 - any JSON
    """Raises ForgeError."""
    try:
        merger = document.get("merge_user") or document.get("merged_by") or {}
        return PullRequest(
            number=int(document["iid"]),
            url=str(document["web_url"]),
            state=_STATES[document["state"]],
            head=str(document["sha"]),
            base=str(document["target_branch"]),
            merged_by=str(merger.get("username") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ForgeError(f"the answer is no merge request: {type(error).__name__}") from None


plugin = Gitlab
