"""Errors as RFC 9457 problem documents: what was asked, what was found, what to do."""

from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from flettner.redaction import mask

MEDIA = "application/problem+json"


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: str  # where: "to.max_num_seqs", "limit"
    why: str


class Problem(BaseModel):
    """RFC 9457. `type` distinguishes problems of one status; "about:blank" adds nothing to the status."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = None


class RequestRefusedError(Exception):
    """Ends a request with a problem document. `kind`: the last word of the problem's type."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str = "",
        faults: tuple[Fault, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(
            type=f"urn:flettner:problem:{kind}" if kind else "about:blank",
            title=HTTPStatus(status).phrase,
            status=status,
            detail=mask(detail),
            errors=list(faults) or None,
        )
        self.headers = dict(headers or {})

    def response(self) -> web.Response:
        return web.Response(
            body=self.problem.model_dump_json(exclude_none=True).encode(),
            status=self.problem.status,
            headers=self.headers,
            content_type=MEDIA,
        )


DETAILS: Mapping[int, str] = {
    404: "There is nothing at this address; /openapi.json lists what there is.",
    405: "This address does not take this method; the Allow header names those it takes.",
    413: "The body is larger than 64 KiB; no request of this API needs that much.",
    417: "The Expect header asks for something this server does not do; leave it out.",
}


def of_exception(error: web.HTTPException) -> RequestRefusedError:
    """The same refusal for what aiohttp raises by itself; `Allow` of a 405 is kept."""
    detail = DETAILS.get(error.status, error.text or error.reason or "The request was refused.")
    allow = error.headers.get("Allow")
    return RequestRefusedError(error.status, detail, headers={"Allow": allow} if allow else None)
