"""Puts the API together, and listens."""

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from socket import AF_UNIX, socket

import structlog
from aiohttp import HttpVersion11, web
from pydantic import TypeAdapter

from agent.api import routes_audit, routes_daemon, routes_rollouts, routes_suggestions, routes_targets
from agent.api.border import HOLDER, Border, stamp
from agent.api.desk import Desk
from agent.api.intake import BODY_LIMIT, body_of, query_of
from agent.api.openapi import document
from agent.api.operations import Answer, Call, Operation
from agent.api.problems import Refusal
from agent.api.tokens import Tokens
from agent.errors import ConfigError

OPERATIONS: tuple[Operation, ...] = (
    *routes_daemon.OPERATIONS,
    *routes_targets.OPERATIONS,
    *routes_suggestions.OPERATIONS,
    *routes_rollouts.OPERATIONS,
    *routes_audit.OPERATIONS,
)
GRACE_S = 2.0  # for requests still open when the daemon stops; streams end at once
SOCKET_MODE = 0o660  # the group decides who may connect; a token is needed all the same

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = structlog.get_logger(__name__)


def build_app(
    desk: Desk,
    tokens: Tokens,
    hosts: Collection[str] = (),
    pages: Sequence[web.RouteDef] = (),
    *,
    heartbeat_s: float = routes_audit.HEARTBEAT_S,
) -> web.Application:
    """The whole API over one desk.

    `hosts`: names, besides those of loopback, that clients may use in the Host header (no ports; IPv6 in
    brackets). `pages`: GET routes of the console's files, served without a token, so they hold no data.
    """
    border = Border(tokens, hosts, [page.path for page in pages])
    app = web.Application(middlewares=[border.middleware], client_max_size=BODY_LIMIT)
    app[routes_audit.BORDER] = border
    app[routes_audit.HEARTBEAT] = heartbeat_s
    app[routes_audit.OPEN] = set()
    app[routes_daemon.DESCRIPTION] = json.dumps(document(OPERATIONS)).encode()
    app.on_response_prepare.append(stamp)
    app.on_startup.append(_open)
    app.on_shutdown.append(_close)
    for operation in OPERATIONS:
        app.router.add_route(
            operation.method,
            operation.path,
            _endpoint(operation, desk),
            name=operation.name,
            expect_handler=_expect,
        )
    app.router.add_routes(pages)
    return app


async def _open(app: web.Application) -> None:
    app[routes_audit.CLOSING] = asyncio.Event()


async def _close(app: web.Application) -> None:
    app[routes_audit.CLOSING].set()


def _endpoint(operation: Operation, desk: Desk) -> Endpoint:
    adapter = TypeAdapter[object](operation.gives)

    async def endpoint(request: web.Request) -> web.StreamResponse:
        holder = request.get(HOLDER)
        if operation.role is not None and (holder is None or not holder.allows(operation.role)):
            has = holder.role if holder else "none"
            detail = f"This needs the role {operation.role}; the token's role is {has}."
            raise Refusal(403, detail, kind="role-too-low")
        query = query_of(request, operation.query)
        body = await body_of(request, operation.body) if operation.body else None
        given = await operation.answer(
            Call(request=request, desk=desk, holder=holder, query=query, body=body)
        )
        if isinstance(given, web.StreamResponse):
            return given
        answer = given if isinstance(given, Answer) else Answer(value=given)
        return web.Response(
            body=adapter.dump_json(answer.value, by_alias=True),
            status=operation.status,
            headers=answer.headers,
            content_type=operation.media,
        )

    return endpoint


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Answer `Expect: 100-continue`; a problem document for any other expectation."""
    if request.version != HttpVersion11:
        return None
    if request.headers.get("Expect", "").lower() != "100-continue":
        status = HTTPStatus.EXPECTATION_FAILED
        return Refusal(status, "Only `Expect: 100-continue` is understood; leave it out.").response()
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # as aiohttp's own: this was not the response yet
    return None


async def serve(app: web.Application, listen: str) -> web.AppRunner:
    """Listen on `host:port` or `unix:/path`; `runner.addresses` says where, `runner.cleanup()` ends it.

    Raises ConfigError when the address cannot be read or is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=GRACE_S)
    await runner.setup()
    try:
        if listen.startswith("unix:"):
            await _listen_unix(runner, Path(listen.removeprefix("unix:")))
        else:
            host, port = _host_and_port(listen)
            await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(
            f"[api] listen = {listen!r}: cannot listen there: {error.strerror or error};"
            " stop what else uses the address, or choose another"
        ) from error
    except BaseException:
        await runner.cleanup()
        raise
    return runner


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:  # noqa: PLR2004
        raise ConfigError(f"[api] listen = {listen!r}: write host:port, [ipv6]:port or unix:/path")
    if host != "localhost" and not _is_loopback(host):
        log.warning("api.exposed", listen=listen, why="tokens travel in clear text; put a TLS proxy in front")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _listen_unix(runner: web.AppRunner, path: Path) -> None:
    _refuse_taken(path)
    await web.UnixSite(runner, path).start()
    _open_to_group(path)


def _open_to_group(path: Path) -> None:
    path.chmod(SOCKET_MODE)


def _refuse_taken(path: Path) -> None:
    """A socket that is there already would be removed, also one that a process still answers on."""
    asked = f"[api] listen = 'unix:{path}'"
    if not path.is_absolute():
        raise ConfigError(f"{asked}: the path must be absolute")
    if path.exists() and not path.is_socket():
        raise ConfigError(f"{asked}: there is a file that is no socket; choose another path")
    if _answers(path):
        raise ConfigError(f"{asked}: another process listens there; stop it first")


def _answers(path: Path) -> bool:
    with closing(socket(AF_UNIX)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
