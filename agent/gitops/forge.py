"""The port of a forge: a service with pull requests, such as GitHub."""

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequestText:
    branch: str
    base: str  # the branch that it is for
    title: str
    body: str  # Markdown


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    number: int  # 0 where there are none
    url: str
    state: Literal["open", "merged", "closed"] = "open"
    head: str = ""  # the last commit of its branch
    base: str = ""  # the branch that it is for, or was merged into
    merged_by: str = ""  # the login of the person


class Forge(Protocol):
    """A module `forges/NAME.py`. Each call raises ForgeError."""

    async def check(self, token: str) -> None:
        """Whether the API answers this token with the pull requests of the project."""
        ...

    async def open(self, text: PullRequestText, token: str) -> PullRequest:
        """Open a pull request, or find the open one of this branch."""
        ...

    async def read(self, number: int, token: str) -> PullRequest: ...

    async def rewrite(self, number: int, text: PullRequestText, token: str) -> None:
        """Replace title and body."""
        ...

    async def close(self, number: int, token: str) -> None: ...
