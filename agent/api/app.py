"""Builds the aiohttp application of the API from the table of operations."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from http import HTTPStatus

from aiohttp import HttpVersion11, web
from pydantic import TypeAdapter

from flettner.agent.api.client_address import ClientAddresses, Network
from flettner.agent.api.daemon_view import DaemonView
from flettner.agent.api.external_tokens import Authenticator, ExternalTokens
from flettner.agent.api.failed_auth import FailedAuthLog
from flettner.agent.api.idempotency import IdempotencyKeys
from flettner.agent.api.middleware import ACCESS_CONTROL, HOLDER, AccessControl, stamp
from flettner.agent.api.openapi import document
from flettner.agent.api.operations import Call, Operation, OperationResult
from flettner.agent.api.peer_identity import PeerIdentities
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.request_parsing import BODY_LIMIT, body_of, query_of
from flettner.agent.api.routes import (
    audit,
    console,
    daemon,
    decisions,
    events,
    inputs,
    log,
    model,
    predictions,
    rollouts,
    scrape_targets,
    series,
    sign_in,
    suggestions,
    targets,
)
from flettner.agent.api.sign_in import SIGNING_IN, find_sign_in
from flettner.agent.api.target_scope import ScopedView
from flettner.agent.api.tokens import Tokens
from flettner.agent.domain.state import State
from flettner.primitives.wall_clock import utc_now

OPERATIONS: tuple[Operation, ...] = (
    *daemon.OPERATIONS,
    *console.OPERATIONS,
    *sign_in.OPERATIONS,
    *targets.OPERATIONS,
    *model.OPERATIONS,
    *inputs.OPERATIONS,
    *predictions.OPERATIONS,
    *series.OPERATIONS,
    *suggestions.OPERATIONS,
    *decisions.OPERATIONS,
    *rollouts.OPERATIONS,
    *log.OPERATIONS,
    *audit.OPERATIONS,
    *events.OPERATIONS,
    *scrape_targets.OPERATIONS,
)
FAILED_AUTH: web.AppKey[FailedAuthLog] = web.AppKey("failed_auth", FailedAuthLog)
AppEndpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]


@cache
def _description() -> bytes:
    """The OpenAPI document, which does not change while a process runs."""
    return json.dumps(document(OPERATIONS)).encode()


def build_app(
    daemon_view: DaemonView,
    tokens: Tokens,
    hosts: Collection[str] = (),
    pages: Sequence[web.RouteDef] = (),
    *,
    peers: PeerIdentities | None = None,
    authenticators: Mapping[str, Authenticator] | None = None,
    public_url: str = "",
    trusted_proxies: Collection[Network] = (),
    limits: RateLimits | None = None,
    heartbeat_s: float = events.HEARTBEAT_S,
) -> web.Application:
    """The API of one daemon. `peers` None: callers on a unix socket need a token, too.

    `hosts`: names that the Host header may have besides those of loopback (no ports; IPv6 in brackets).
    `pages`: GET routes of the console's files, which need no token and hold no data. `public_url`: of the
    console, to which a provider sends people back. `trusted_proxies`: whose X-Forwarded-For counts.
    """
    limits = limits or RateLimits(now=time.monotonic)
    failed_auth = FailedAuthLog(daemon_view.report_failed_auth)
    authenticators = authenticators or {}
    signing_in = find_sign_in(authenticators.items(), public_url, time.monotonic)
    access_control = AccessControl(
        tokens,
        peers,
        limits,
        failed_auth,
        external=ExternalTokens(authenticators, time.monotonic),
        sign_in=signing_in,
        clients=ClientAddresses(trusted_proxies),
        hosts=hosts,
        pages=[page.path for page in pages],
    )
    idempotency = IdempotencyKeys(daemon_view.accepted)
    app = web.Application(middlewares=[access_control.middleware], client_max_size=BODY_LIMIT)
    app[ACCESS_CONTROL] = access_control
    app[SIGNING_IN] = signing_in
    app[FAILED_AUTH] = failed_auth
    app[audit.READING] = asyncio.Lock()
    app[events.HEARTBEAT] = heartbeat_s
    app[events.OPEN] = set()
    app[decisions.RECEIVED] = decisions.ReceivedDecisions(utc_now)
    app[daemon.DESCRIPTION] = _description()
    app.on_response_prepare.append(stamp)
    app.on_startup.append(_open)
    app.on_shutdown.append(_close)
    for operation in OPERATIONS:
        app.router.add_route(
            operation.method,
            operation.path,
            _endpoint(operation, daemon_view, idempotency),
            name=operation.name,
            expect_handler=_expect,
        )
    app.router.add_routes(pages)
    return app


async def _open(app: web.Application) -> None:
    app[events.CLOSING] = asyncio.Event()


async def _close(app: web.Application) -> None:
    app[events.CLOSING].set()
    app[FAILED_AUTH].close()
    await app[decisions.RECEIVED].close()


def _endpoint(operation: Operation, daemon_view: DaemonView, idempotency: IdempotencyKeys) -> AppEndpoint:
    adapter = TypeAdapter[object](operation.response)

    async def endpoint(request: web.Request) -> web.StreamResponse:
        holder = request.get(HOLDER)
        if operation.role is not None and (holder is None or not holder.allows(operation.role)):
            has = holder.role if holder else "none"
            detail = f"This needs the role {operation.role}; the token's role is {has}."
            raise RequestRefusedError(403, detail, kind="role-too-low")
        query = query_of(request, operation.query)
        body = await body_of(request, operation.body) if operation.body else None
        seen = daemon_view if holder is None or holder.targets is None else ScopedView(daemon_view, holder)
        call = Call(request=request, daemon=seen, holder=holder, query=query, body=body)
        if operation.method == "GET" or holder is None:
            return await respond(call)
        return await idempotency.once(request, holder.id, partial(respond, call), needed=operation.needs_key)

    async def respond(call: Call, name: str = "", accepted: State | None = None) -> web.StreamResponse:
        given = await operation.handler(replace(call, request_name=name, accepted=accepted))
        if isinstance(given, web.StreamResponse):
            return given
        answer = given if isinstance(given, OperationResult) else OperationResult(value=given)
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
        return RequestRefusedError(
            status, "Only `Expect: 100-continue` is supported; omit the header."
        ).response()
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # as in aiohttp's own handler: this was not the response yet
    return None
