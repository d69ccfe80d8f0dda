"""The console's files, which hold no data and need no token, and the caller's identity for it."""

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import version
from importlib.resources import files

from aiohttp import web
from pydantic import BaseModel, Field

from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.sign_in import SIGNING_IN
from flettner.agent.config.listen import Role

MEDIA = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
CACHING = "no-cache"  # cached, but revalidated each time: 304 if unchanged


class MeDocument(BaseModel):
    principal: str
    role: Role
    targets: list[str] | None = Field(description="visible targets; null: all")
    now: datetime = Field(description="the daemon's clock")
    version: str
    head: int = Field(description="number of the audit's latest record")
    session_ends: datetime | None = Field(description="of the browser's sign-in; null: another credential")


async def _me(call: Call) -> MeDocument:
    holder = call.holder
    if holder is None:
        raise TypeError("whoAmI has a role, so there is a holder")
    sign_in = None if "Authorization" in call.request.headers else call.request.app[SIGNING_IN]
    left_s = sign_in.left_s(call.request) if sign_in else None
    return MeDocument(
        principal=holder.principal,
        role=holder.role,
        targets=None if holder.targets is None else sorted(holder.targets),
        now=call.daemon.now(),
        version=version("flettner"),
        head=int(call.daemon.counters().get("audit_head_seq", 0)),
        session_ends=call.daemon.now() + timedelta(seconds=left_s) if left_s is not None else None,
    )


@dataclass(frozen=True, slots=True)
class _File:
    plain: bytes
    packed: bytes
    media: str
    tag: str

    async def serve(self, request: web.Request) -> web.Response:
        headers = {"ETag": self.tag, "Cache-Control": CACHING, "Vary": "Accept-Encoding"}
        if self.tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        body = self.plain
        if "gzip" in request.headers.get("Accept-Encoding", "").lower():
            body, headers["Content-Encoding"] = self.packed, "gzip"
        return web.Response(body=body, headers=headers, content_type=self.media, charset="utf-8")


@cache
def _files() -> dict[str, _File]:
    """By path. Read once: some 200 kB."""
    by_path = {}
    console = files("flettner.console")
    for folder, prefix in ((console, "/"), (console / "assets", "/assets/")):
        for file in folder.iterdir():
            media = MEDIA.get(f".{file.name.rpartition('.')[2]}")
            if media is None or not file.is_file():
                continue
            plain = file.read_bytes()
            tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
            path = "/" if file.name == "index.html" else f"{prefix}{file.name}"
            by_path[path] = _File(plain, gzip.compress(plain, mtime=0), media, tag)
    return by_path


def pages() -> list[web.RouteDef]:
    """One route for each file of the console, so that no path leads out of its folder."""
    return [web.get(path, _serving(file), allow_head=False) for path, file in sorted(_files().items())]


def _serving(file: _File) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await file.serve(request)

    return serve


OPERATIONS = (
    Operation(
        name="whoAmI",
        method="GET",
        path="/v1/me",
        role="viewer",
        summary="The caller, its role, and the daemon's version",
        handler=_me,
        response=MeDocument,
    ),
)
