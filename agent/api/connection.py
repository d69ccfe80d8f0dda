"""One HTTP connection of the API: errors of the HTTP layer as problem documents.

The HTTP library's own error pages repeat the input, which may hold a token, and name the library's version.
"""

from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from flettner.agent.api.middleware import SAFE_HEADERS, SERVER
from flettner.agent.api.problems import RequestRefusedError, of_exception

MALFORMED = "The request is not valid HTTP/1.1, or a line or the number of its headers is over the limit."
log = structlog.get_logger(__name__)


class HttpConnection(web.RequestHandler):
    """As the library's own connection, with other answers to what no route sees."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request; one line in the log, without a traceback and without its content."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        log.warning(
            "api.malformed_request", peer=request.remote or "the unix socket", problem=type(exc).__name__
        )
        if request.writer.output_size > 0:
            raise ConnectionError("a response was already sent on this connection")
        response = RequestRefusedError(HTTPStatus.BAD_REQUEST, MALFORMED).response()
        response.headers.update(SAFE_HEADERS | {"Server": SERVER})
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """A refusal by the HTTP library before any middleware is a problem document, too."""
        if isinstance(resp, web.HTTPException):
            resp = of_exception(resp).response()
        return await super().finish_response(request, resp, start_time)
