"""Stand-ins of the APIs of GitHub, GitLab and Gitea, with the fields that their documentation shows."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from aiohttp.test_utils import TestServer

from flettner.agent.gitops.forge import Forge
from flettner.forges.gitea import Gitea
from flettner.forges.github import Github
from flettner.forges.gitlab import Gitlab

TOKEN, PROJECT = "PLANTED-token", "ops/serving"
KINDS = ("github", "gitlab", "gitea")
_TOKENS = {
    "github": ("Authorization", f"Bearer {TOKEN}"),
    "gitlab": ("PRIVATE-TOKEN", TOKEN),
    "gitea": ("Authorization", f"token {TOKEN}"),
}


@dataclass
class Pull:
    number: int
    branch: str
    base: str
    title: str
    body: str
    state: str = "open"  # open, closed or merged
    merged_by: str = ""
    head: str = ""  # set by a person who pushes to the branch; empty: the last commit


@dataclass
class ForgeStandIn:
    kind: str
    head_of: Callable[[str], str] = lambda branch: f"commit of {branch}"
    pulls: list[Pull] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    on_rewrite: Callable[[Pull], None] = lambda _: None  # before it is answered
    status: int = 0  # of every answer; 0: as it should be
    url: str = ""

    def merge(self, by: str, number: int = 1) -> None:
        pull = self.pulls[number - 1]
        pull.state, pull.merged_by = "merged", by

    @property
    def plugin(self) -> Forge:
        match self.kind:
            case "github":
                return Github(project=PROJECT, api=self.url)
            case "gitlab":
                return Gitlab(project=PROJECT, api=f"{self.url}/api/v4")
            case _:
                return Gitea(project=PROJECT, api=f"{self.url}/api/v1")

    async def answer(self, request: web.Request) -> web.Response:
        path = unquote(request.path)
        self.calls.append(f"{request.method} {path}")
        header, value = _TOKENS[self.kind]
        if self.status:
            return web.json_response({"message": f"it fails, says {TOKEN[:0]}"}, status=self.status)
        if request.headers.get(header) != value:
            return web.json_response({"message": "Bad credentials"}, status=401)
        root = {
            "github": f"/repos/{PROJECT}/pulls",
            "gitea": f"/api/v1/repos/{PROJECT}/pulls",
            "gitlab": f"/api/v4/projects/{PROJECT}/merge_requests",
        }[self.kind]
        if not path.startswith(root):
            return web.json_response({"message": "Not Found"}, status=404)
        rest = path.removeprefix(root).strip("/")
        body = json.loads(await request.read() or b"{}")
        return self._open(body) if request.method == "POST" else self._one(request, rest, body)

    def _open(self, body: dict[str, str]) -> web.Response:
        names = ("source_branch", "target_branch", "title", "description")
        names = names if self.kind == "gitlab" else ("head", "base", "title", "body")
        branch, base, title, text = (body[name] for name in names)
        if any(pull.branch == branch and pull.state == "open" for pull in self.pulls):
            status = 422 if self.kind == "github" else 409
            return web.json_response({"message": "already exists"}, status=status)
        pull = Pull(number=len(self.pulls) + 1, branch=branch, base=base, title=title, body=text)
        self.pulls.append(pull)
        return web.json_response(self._document(pull), status=201)

    def _one(self, request: web.Request, rest: str, body: dict[str, str]) -> web.Response:
        if not rest:
            branch = request.query.get("head", request.query.get("source_branch", "")).rpartition(":")[2]
            listed = [
                self._document(pull) for pull in self.pulls if (pull.branch, pull.state) == (branch, "open")
            ]
            return web.json_response(listed)
        if not rest.isdecimal():  # Gitea: base and branch
            base, _, branch = rest.partition("/")
            pull = next(pull for pull in self.pulls if (pull.base, pull.branch) == (base, branch))
            return web.json_response(self._document(pull))
        pull = self.pulls[int(rest) - 1]
        if request.method in {"PATCH", "PUT"}:
            if "closed" in body.values() or body.get("state_event") == "close":
                if pull.state == "merged":
                    return web.json_response({"message": "it is merged"}, status=422)
                pull.state = "closed"
            self.on_rewrite(pull)
            pull.title = body.get("title", pull.title)
            pull.body = body.get("body", body.get("description", pull.body))
        return web.json_response(self._document(pull))

    def _document(self, pull: Pull) -> dict[str, Any]:
        head = pull.head or self.head_of(pull.branch)
        merged = pull.state == "merged"
        if self.kind == "gitlab":
            return {
                "id": 1000 + pull.number,
                "iid": pull.number,
                "title": pull.title,
                "description": pull.body,
                "state": {"open": "opened"}.get(pull.state, pull.state),
                "source_branch": pull.branch,
                "target_branch": pull.base,
                "sha": head,
                "merged_by": {"username": pull.merged_by} if merged else None,
                "merge_user": {"id": 7, "username": pull.merged_by} if merged else None,
                "web_url": f"https://forge.example/{PROJECT}/-/merge_requests/{pull.number}",
            }
        return {
            "id": 1000 + pull.number,
            "number": pull.number,
            "title": pull.title,
            "body": pull.body,
            "state": "open" if pull.state == "open" else "closed",
            "merged": merged,
            "merged_at": "2026-11-20T12:00:00Z" if merged else None,
            "merged_by": {"id": 7, "login": pull.merged_by} if merged else None,
            "head": {"ref": pull.branch, "sha": head},
            "base": {"ref": pull.base},
            "html_url": f"https://forge.example/{PROJECT}/pull/{pull.number}",
        }


@asynccontextmanager
async def forge_stand_in(kind: str) -> AsyncIterator[ForgeStandIn]:
    stand_in = ForgeStandIn(kind=kind)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stand_in.answer)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.01)
    stand_in.url = str(server.make_url("")).rstrip("/")
    try:
        yield stand_in
    finally:
        await server.close()
