"""A plain git repository: the branch is pushed, and a person merges it or not. Nobody approves by that."""

from dataclasses import dataclass

from flettner.agent.gitops.forge import PullRequest, PullRequestText


@dataclass(frozen=True, slots=True)
class NoForge:
    async def check(self, token: str) -> None: ...

    async def open(self, text: PullRequestText, token: str) -> PullRequest:
        del text, token
        return PullRequest(number=0, url="")

    async def read(self, number: int, token: str) -> PullRequest:
        del token
        return PullRequest(number=number, url="")

    async def rewrite(self, number: int, text: PullRequestText, token: str) -> None: ...

    async def close(self, number: int, token: str) -> None: ...


plugin = NoForge
