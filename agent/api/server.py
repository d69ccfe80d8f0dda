"""The API's listening sockets: unix and TCP, with connection limits, with or without TLS."""

import asyncio
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from flettner.agent.api.client_address import UNIX
from flettner.agent.api.middleware import SAFE_HEADERS, SERVER
from flettner.agent.api.problems import RequestRefusedError, of_exception
from flettner.agent.api.seldom_log import SeldomLog
from flettner.agent.domain.errors import ConfigError
from flettner.primitives.address import Address, Listener, UnixSocket
from flettner.primitives.sockets import is_listening

GRACE_S = 2.0  # for requests still open when the daemon stops; streams end at once
SOCKET_MODE = 0o660  # access to the socket; SO_PEERCRED and tokens decide about requests
DIRECTORY_MODE = 0o755
CONNECTIONS = 256  # at once at each address; more are closed
IDLE_S = 30.0  # for a complete request head, after connecting and between requests
HANDSHAKE_S = 10
LINGERING_S = 2.0  # time to read a refused body, so that the refusal arrives
MOST_HEADERS = 64  # of 8 KiB each at most, as aiohttp has it
MALFORMED = "The request is not valid HTTP/1.1, or a line or the number of its headers is over the limit."

SiteServer = asyncio.AbstractServer
Bind = Callable[[Callable[[], asyncio.Protocol]], Awaitable[SiteServer]]


async def serve(
    app: web.Application,
    *listeners: Listener,
    tls: ssl.SSLContext | None = None,
    socket_mode: int = SOCKET_MODE,
) -> web.AppRunner:
    """Listen on each; `runner.addresses` lists them, `runner.cleanup()` stops.

    Raises ConfigError when an address is taken, or is open to other hosts without TLS.
    """
    runner = web.AppRunner(app, shutdown_timeout=GRACE_S)
    await runner.setup()
    try:
        for listener in listeners:
            await _listen(runner, listener, tls, socket_mode)
    except BaseException:
        await runner.cleanup()
        raise
    return runner


async def serve_plain(app: web.Application, address: Address, *, key: str) -> web.AppRunner:
    """Listen without TLS, also beyond loopback: only for what holds no secrets.

    `key`: of [api], for ConfigError.
    """
    runner = web.AppRunner(app, shutdown_timeout=GRACE_S)
    await runner.setup()
    bind = partial(asyncio.get_running_loop().create_server, host=address.host, port=address.port)
    try:
        await _Site(runner, str(address), bind, None).start()
    except OSError as error:
        await runner.cleanup()
        raise _cannot_listen(key, address, error) from error
    return runner


async def _listen(
    runner: web.AppRunner, listener: Listener, tls: ssl.SSLContext | None, socket_mode: int
) -> None:
    try:
        if isinstance(listener, UnixSocket):
            await _Site(runner, str(listener), _unix(listener, socket_mode), listener.path).start()
        else:
            await _Site(runner, str(listener), _tcp(listener, tls), None, tls).start()
    except OSError as error:
        raise _cannot_listen("listen", listener, error) from error


def _cannot_listen(key: str, listener: Listener, error: OSError) -> ConfigError:
    return ConfigError(
        f"[api] {key} = '{listener}': cannot listen there: {error.strerror or error};"
        " stop the process that uses the address, or choose another one"
    )


class _Site(web.BaseSite):
    """As aiohttp's own site, but closes surplus connections and removes its unix socket."""

    __slots__ = ("_bind", "_handshakes", "_malformed", "_name", "_path", "_tls")

    def __init__(
        self,
        runner: web.AppRunner,
        name: str,
        bind: Bind,
        path: Path | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner)
        self._name = name
        self._bind = bind
        self._path = path
        self._tls = tls
        self._handshakes: list[_Handshake] = []
        self._malformed = SeldomLog("api.malformed_request")

    @property
    def name(self) -> str:
        return self._name

    async def start(self) -> None:
        self._server = await self._bind(self._connection)
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _connection(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None or self._count_open(server) >= CONNECTIONS:
            return _Full()
        connection = HttpConnection(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None means no access log
            keepalive_timeout=IDLE_S,
            lingering_time=LINGERING_S,
            max_headers=MOST_HEADERS,
            auto_decompress=False,  # read_body refuses compressed bodies; unread ones are not unpacked either
        )
        connection.malformed = self._malformed
        connection.site = self
        if self._tls is None:
            return connection
        self._handshakes.append(_Handshake(connection, self._tls))
        return self._handshakes[-1]

    def _count_open(self, server: web.Server) -> int:
        """Only of this address: whoever holds all of a port leaves the unix socket to admins."""
        self._handshakes = [each for each in self._handshakes if each.goes_on]
        ready = sum(getattr(connection, "site", None) is self for connection in server.connections)
        return ready + len(self._handshakes)


class HttpConnection(web.RequestHandler):
    """As aiohttp's own connection, but errors of the HTTP layer are problem documents.

    The library's own error pages repeat the input, which may hold a token, and name its version.
    """

    __slots__ = ("malformed", "site")
    malformed: SeldomLog
    site: web.BaseSite

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request; the log has neither a traceback nor its content.

        Bytes of a header that are no text fail where the library repeats them (Expect).
        """
        if not isinstance(exc, HttpProcessingError | UnicodeEncodeError):
            return super().handle_error(request, status, exc, message)
        self.malformed.warn(peer=request.remote or UNIX, problem=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("a response was already sent on this connection")
        response = RequestRefusedError(HTTPStatus.BAD_REQUEST, MALFORMED).response()
        response.headers.update(SAFE_HEADERS | {"Server": SERVER})
        response.force_close()
        return response

    def log_exception(self, *args: object, exc_info: object = None, **more: Any) -> None:  # noqa: ANN401
        """A badly framed body that nobody reads is a malformed request: no traceback for each."""
        if isinstance(exc_info, web.RequestPayloadError):
            peer = self.transport.get_extra_info("peername") if self.transport is not None else None
            self.malformed.warn(peer=peer[0] if peer else UNIX, problem=type(exc_info).__name__)
        else:
            super().log_exception(*args, exc_info=exc_info, **more)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """A refusal by the HTTP library before any middleware is a problem document, too."""
        if isinstance(resp, web.HTTPException):
            resp = of_exception(resp).response()
        return await super().finish_response(request, resp, start_time)


class _Handshake(asyncio.Protocol):
    """TLS before HTTP, on a connection that counts once it is accepted.

    With the `ssl` of asyncio's server a connection is nobody's before its handshake: thousands of silent ones
    could take all files of the process.
    """

    def __init__(self, connection: HttpConnection, tls: ssl.SSLContext) -> None:
        self._connection, self._tls = connection, tls
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        secured = SSLProtocol(
            asyncio.get_running_loop(),
            self._connection,
            self._tls,
            None,  # type: ignore[arg-type]  # nobody waits for it
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        transport.set_protocol(secured)
        secured.connection_made(transport)

    @property
    def goes_on(self) -> bool:
        """Afterwards aiohttp's server knows the connection, or it is closed."""
        is_closing = self._transport is not None and self._transport.is_closing()
        return not is_closing and self._connection.transport is None


class _Full(asyncio.Protocol):
    """Closes the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _tcp(address: Address, tls: ssl.SSLContext | None) -> Bind:
    if tls is None and not address.is_loopback:
        raise ConfigError(
            f"[api] listen = '{address}': beyond loopback the API speaks TLS only; give tls_cert and tls_key"
        )
    return partial(asyncio.get_running_loop().create_server, host=address.host, port=address.port)


def _unix(listener: UnixSocket, mode: int) -> Bind:
    _refuse_taken(listener)
    path = listener.path
    if not path.parent.exists():
        path.parent.mkdir(DIRECTORY_MODE)
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
        path.chmod(mode)
    except BaseException:
        bound.close()
        raise
    return partial(asyncio.get_running_loop().create_unix_server, sock=bound)


def _refuse_taken(listener: UnixSocket) -> None:
    """Raises ConfigError if the path is in use; a stale socket is removed later."""
    asked, path = f"[api] listen = '{listener}'", listener.path
    if path.exists() and not path.is_socket():
        raise ConfigError(f"{asked}: the path is a file, not a socket; choose another path")
    if is_listening(path):
        raise ConfigError(f"{asked}: another process listens there; stop it first")
