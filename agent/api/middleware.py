"""Access control for every request: Host and Origin checks, authentication, rate limits."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog
from aiohttp import web

from flettner.agent.api.client_address import UNIX, ClientAddresses, group_of
from flettner.agent.api.external_tokens import ExternalTokens, ReviewError
from flettner.agent.api.failed_auth import FailedAuthLog
from flettner.agent.api.peer_identity import PeerIdentities
from flettner.agent.api.problems import RequestRefusedError, of_exception
from flettner.agent.api.rate_limits import STRANGERS_AT_ONCE, RateLimits
from flettner.agent.api.seldom_log import SeldomLog
from flettner.agent.api.sign_in import CALLBACK, CONSOLE, OFFER, PATHS, SignIn
from flettner.agent.api.tokens import Holder, Tokens
from flettner.agent.domain.errors import JournalError

HOLDER: web.RequestKey[Holder] = web.RequestKey("holder", Holder)
STARTED: web.RequestKey[bool] = web.RequestKey("started", bool)  # the response headers are sent
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?", re.IGNORECASE)
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; font-src 'self'; img-src 'self'; script-src 'self';"
        " style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
SERVER = "flettner"  # without the versions of its libraries
HEALTH = "/healthz"
ME = "/v1/me"
DECISIONS = "/v1/decisions/"
"""Requests below it are signed by the service that sends them, which their handler verifies."""
SEND_TIMEOUT_S = 30.0
HINT = "if it is a proxy of yours, list it in [api] trusted_proxies: all its clients count as one now"

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = structlog.get_logger(__name__)


class AccessControl:
    """The middleware of the application. Every path that is not public needs a caller, 404s too."""

    def __init__(
        self,
        tokens: Tokens,
        peers: PeerIdentities | None,
        limits: RateLimits,
        failed_auth: FailedAuthLog,
        *,
        external: ExternalTokens,
        sign_in: SignIn | None,
        clients: ClientAddresses,
        hosts: Collection[str],
        pages: Collection[str],
    ) -> None:
        self._tokens = tokens
        self._peers = peers
        self._external = external
        self._sign_in = sign_in
        self._clients = clients
        self._told_of_proxy = False
        self._away = SeldomLog("api.token_not_reviewed")
        self._strangers = RateLimits(limits.now, at_once=STRANGERS_AT_ONCE)
        self._limits = limits
        self._failed_auth = failed_auth
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}
        self._pages = frozenset(pages)  # paths of the console's files, which hold no data and need no token

    @web.middleware
    async def middleware(self, request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        try:
            self._refuse_unknown_host(request)
            self._refuse_cross_site(request)
            await self._authenticate(request)
            return await self._served(request, handler)
        except RequestRefusedError as refusal:
            return refusal.response()
        except web.HTTPException as error:
            return of_exception(error).response()
        except JournalError as error:
            if request.get(STARTED):
                raise
            return RequestRefusedError(
                503, f"The audit journal cannot be read: {error}", kind="audit-unreadable"
            ).response()
        except Exception:  # fails this request only; the log has the traceback
            if request.get(STARTED):
                raise  # the response has started: aiohttp logs the error and closes the connection
            log.exception("api.failed", method=request.method, path=request.path)
            return RequestRefusedError(
                500, "This is a bug in flettner; the daemon's log has the details."
            ).response()

    async def holder(self, request: web.Request) -> Holder | None:
        """Identify the caller by token, else session, else socket peer; re-checked while a stream is open.

        Raises ReviewError if another service decides about the token and does not answer.
        """
        if "Authorization" not in request.headers:
            signed_in = self._sign_in.holder(request) if self._sign_in else None
            return signed_in or (self._peers.holder(request) if self._peers else None)
        text = _bearer(request)
        return self._tokens.holder(text) or await self._external.holder(text)

    def charge(self, request: web.Request, size: int) -> float:
        """Charge the caller for bytes, negative to pay back; returns the seconds to wait for more."""
        return self._limits.charge(request[HOLDER].id, size)

    def report_failure(self, request: web.Request, why: str) -> None:
        """Log and audit a failed authentication. `why` is our own text.

        Raises RequestRefusedError (429) if too many have failed from there.
        """
        client = self._clients.find(request)
        if self._clients.misses_proxy(request) and not self._told_of_proxy:
            self._told_of_proxy = True
            log.warning("api.proxy_not_trusted", peer=request.remote, hint=HINT)
        self._failed_auth.record(f"from {client or UNIX}", why)
        self._limits.spend(group_of(client))

    def client_of(self, request: web.Request) -> str:
        """What counts as one client where nobody is known."""
        return group_of(self._clients.find(request))

    def spend(self, holder: Holder) -> None:
        """Count a request of a caller whom its handler has identified. Raises RequestRefusedError (429)."""
        self._limits.spend(holder.id)

    async def _identify(self, request: web.Request) -> Holder | None:
        """As `holder`; limits the requests to other services for tokens that none of them has accepted.

        Raises RequestRefusedError (429) also before one, if too many tokens of the client have failed.
        """
        text = _bearer(request) if "Authorization" in request.headers else ""
        if self._tokens.holder(text) or not self._external.asks(text):
            return await self.holder(request)
        self._limits.check(self.client_of(request))
        with self._turn_of_stranger(request):
            return await self.holder(request)

    @contextmanager
    def _turn_of_stranger(self, request: web.Request) -> Iterator[None]:
        """While a request of nobody known waits, for its body or for another service.

        Raises RequestRefusedError (429): they leave connections to callers who are known.
        """
        with self._strangers.turn("everybody"), self._limits.turn(self.client_of(request)):
            yield

    async def _served(self, request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        holder = request.get(HOLDER)
        if holder is None and (request.path in PATHS or request.path.startswith(DECISIONS)):
            with self._turn_of_stranger(request):
                return await _send(request, await handler(request))
        if holder is None:
            return await _send(request, await handler(request))
        self._limits.spend(holder.id)
        with self._limits.turn(holder.id):
            response = await handler(request)
            if isinstance(response, web.Response) and isinstance(response.body, bytes):
                self._limits.charge(holder.id, len(response.body))
            return await _send(request, response)

    def _is_local(self, request: web.Request) -> bool:
        """The client is on this machine: over a unix socket, or from a loopback address."""
        client = self._clients.find(request)
        return client.is_loopback if client is not None else is_unix(request)

    def _refuse_unknown_host(self, request: web.Request) -> None:
        """Reject DNS rebinding: a page whose own host name points to this address sends that name."""
        named = request.headers.getall("Host", [])
        if len(named) != 1 or host_of(named[0]) not in self._hosts:
            raise RequestRefusedError(
                421,
                "The Host header names a host that this API does not answer for; use the address it listens"
                " on, or list the name among the API's hosts in the configuration.",
                kind="unknown-host",
            )

    def _refuse_cross_site(self, request: web.Request) -> None:
        site = request.headers.get("Sec-Fetch-Site", "none").lower()
        linked = request.path in self._pages or request.path == CALLBACK or request.path.startswith(DECISIONS)
        link = request.headers.get("Sec-Fetch-Mode") == "navigate" and linked
        foreign = site not in {"none", "same-origin"} and not (link and request.method == "GET")
        host = request.headers.get("Host", "")
        if foreign or not all(is_own(origin, host) for origin in request.headers.getall("Origin", [])):
            detail = "A page of another site may not use this API; open flettner's own console instead."
            raise RequestRefusedError(403, detail, kind="cross-site")

    async def _authenticate(self, request: web.Request) -> None:
        if request.path.startswith(DECISIONS):
            return  # only failures count: others may come from the address of the same TLS proxy
        if self._sign_in and request.path in PATHS:
            return  # as above; what asks the provider has limits of its own
        try:
            holder = await self._identify(request)
        except ReviewError as error:
            self._away.warn(why=str(error))
            self._limits.spend(self.client_of(request))
            raise RequestRefusedError(
                503,
                "This token cannot be checked now; tokens of the tokens file work meanwhile.",
                kind="token-not-reviewed",
                headers={"Retry-After": "10"},
            ) from error
        if holder is not None:
            request[HOLDER] = holder
            return
        if request.path in self._pages or (request.path == HEALTH and self._is_local(request)):
            return
        sent = "Authorization" in request.headers
        if not sent and self._sign_in and self._sign_in.left_s(request) and CONSOLE not in request.headers:
            raise RequestRefusedError(
                403,
                f"The session of a browser counts only with the header {CONSOLE}, which the console sends and"
                " a page of another site cannot.",
                kind="no-console-header",
            )
        if _asks_who(request) and not (self._sign_in and self._sign_in.has_cookie(request)):
            self._limits.spend(self.client_of(request))
        else:
            why = self._tokens.describe_fault(_bearer(request)) if sent else "no token"
            self.report_failure(request, why)
        detail = (
            "The token is unknown, revoked or expired; ask an admin for a new one (`flettner token new`)."
            if sent
            else "Send a token as a bearer in the Authorization header (`flettner token new` makes one); over"
            " the unix socket accounts with a role in [api] users or groups need none."
        )
        if not sent and self._sign_in and self._sign_in.has_cookie(request):
            detail = "Your session has ended; sign in again."
        challenge = 'Bearer realm="flettner"' + (', error="invalid_token"' if sent else "")
        offer = {OFFER: self._sign_in.host} if self._sign_in else {}
        raise RequestRefusedError(401, detail, headers={"WWW-Authenticate": challenge, **offer})


ACCESS_CONTROL: web.AppKey[AccessControl] = web.AppKey("access_control", AccessControl)


def _asks_who(request: web.Request) -> bool:
    """Whether it is the console's question who looks at it, before anybody signs in: it tries nothing."""
    return request.path == ME and CONSOLE in request.headers and "Authorization" not in request.headers


def _bearer(request: web.Request) -> str:
    """The token of the Authorization header; empty for another scheme."""
    scheme, _, text = request.headers["Authorization"].partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


async def _send(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a complete response; a stream was sent by its handler."""
    if not isinstance(response, web.Response):
        return response
    async with sending(request):
        await response.prepare(request)
        await response.write_eof()
    return response


@asynccontextmanager
async def sending(request: web.Request) -> AsyncIterator[None]:
    """Limit the time that a reader may take for an answer; a reader that stalls is disconnected.

    A reader that disconnects is not an error of the daemon and is not logged.
    """
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            yield
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()


def host_of(authority: str) -> str | None:
    """The host of a Host header in lower case, without the port; None if it is malformed."""
    match = AUTHORITY.fullmatch(authority)
    return match[1].lower() if match else None


def is_own(origin: str, host: str) -> bool:
    """Whether this origin is the requested host itself."""
    scheme, separator, authority = origin.partition("://")
    is_origin = scheme.lower() in {"http", "https"} and bool(separator) and host_of(authority) is not None
    return is_origin and authority.lower() == host.lower()


async def stamp(request: web.Request, response: web.StreamResponse) -> None:
    """Set the security headers on every response, streams too, unless the handler set them."""
    request[STARTED] = True
    response.headers["Server"] = SERVER
    for name, value in SAFE_HEADERS.items():
        response.headers.setdefault(name, value)


def is_unix(request: web.Request) -> bool:
    connection = request.get_extra_info("socket")
    return connection is not None and connection.family == socket.AF_UNIX
