"""What every request passes first: no foreign pages, no strange names, nobody without a token."""

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection

import structlog
from aiohttp import web

from agent.api.problems import Refusal, of_exception
from agent.api.tokens import Token, Tokens
from agent.errors import JournalError

HOLDER: web.RequestKey[Token] = web.RequestKey("holder", Token)
STARTED: web.RequestKey[bool] = web.RequestKey("started", bool)  # the answer's head is sent
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?", re.IGNORECASE)
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
HEALTH = "/healthz"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = structlog.get_logger(__name__)


class Border:
    """The middleware of the whole application; what is not expressly open needs a token, 404s too."""

    def __init__(self, tokens: Tokens, hosts: Collection[str], pages: Collection[str]) -> None:
        self._tokens = tokens
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}
        self._pages = frozenset(pages)  # paths of the console's files: they hold no data and need no token

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._refuse_strange_host(request)
            self._refuse_other_sites(request)
            self._let_in(request)
            return await handler(request)
        except Refusal as refusal:
            return refusal.response()
        except web.HTTPException as error:
            return of_exception(error).response()
        except JournalError as error:
            if request.get(STARTED):
                raise
            return Refusal(
                503, f"The audit journal cannot be read: {error}", kind="audit-unreadable"
            ).response()
        except Exception:  # ends this request only; the log has it whole
            if request.get(STARTED):
                raise  # too late for another answer: aiohttp logs it and closes the connection
            log.exception("api.failed", method=request.method, path=request.path)
            return Refusal(500, "This is a bug in trimtab; the daemon's log has the details.").response()

    def holder(self, request: web.Request) -> Token | None:
        """Whose valid token the request carries now; asked again while a stream is open."""
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        return self._tokens.holder(text.strip()) if scheme.lower() == "bearer" else None

    def _refuse_strange_host(self, request: web.Request) -> None:
        """A page that has pointed its own name at this address (DNS rebinding) is told apart by the name."""
        if is_unix(request):
            return
        named = request.headers.getall("Host", [])
        authority = AUTHORITY.fullmatch(named[0]) if len(named) == 1 else None
        if authority is None or authority[1].lower() not in self._hosts:
            raise Refusal(
                421,
                "The Host header names a host that this API does not answer for; use the address it listens"
                " on, or list the name among the API's hosts in the configuration.",
                kind="unknown-host",
            )

    def _refuse_other_sites(self, request: web.Request) -> None:
        site = request.headers.get("Sec-Fetch-Site", "none").lower()
        link = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.path in self._pages
        foreign = site not in {"none", "same-origin"} and not (link and request.method == "GET")
        origin = request.headers.get("Origin")
        if (
            origin is not None
            and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower()
        ):
            foreign = True
        if foreign:
            detail = "A page of another site may not use this API; open trimtab's own console instead."
            raise Refusal(403, detail, kind="cross-site")

    def _let_in(self, request: web.Request) -> None:
        holder = self.holder(request)
        if holder is not None:
            request[HOLDER] = holder
            return
        if request.path in self._pages or (request.path == HEALTH and is_local(request)):
            return
        sent = "Authorization" in request.headers
        detail = (
            "The token is unknown, revoked or expired; ask an admin for a new one (`trimtab token new`)."
            if sent
            else "Send a token: `Authorization: Bearer tt_…` (`trimtab token new` makes one)."
        )
        challenge = 'Bearer realm="trimtab"' + (', error="invalid_token"' if sent else "")
        raise Refusal(401, detail, headers={"WWW-Authenticate": challenge})


async def stamp(request: web.Request, response: web.StreamResponse) -> None:
    """Put the safe headers on every response, streams too; what a handler has set itself stays."""
    request[STARTED] = True
    for name, value in SAFE_HEADERS.items():
        response.headers.setdefault(name, value)


def is_unix(request: web.Request) -> bool:
    connection = request.get_extra_info("socket")
    return connection is not None and connection.family == socket.AF_UNIX


def is_local(request: web.Request) -> bool:
    """The peer is on this machine: over a unix socket, or from a loopback address."""
    if is_unix(request):
        return True
    try:
        peer = ipaddress.ip_address(request.remote or "")
    except ValueError:
        return False
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return (mapped or peer).is_loopback
