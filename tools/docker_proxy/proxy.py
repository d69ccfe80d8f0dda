"""The HTTP side: serves clients on a Unix socket and streams the replies of the engine's socket."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlencode

import structlog
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, UnixConnector, web
from yarl import URL

from flettner.tools.docker_proxy.engine import ADDRESS, EngineSocket
from flettner.tools.docker_proxy.errors import Absent, EngineSilent, Refused, TooLarge
from flettner.tools.docker_proxy.fields import FieldContext, shown
from flettner.tools.docker_proxy.mounts import host_files
from flettner.tools.docker_proxy.policy import ProxyPolicy
from flettner.tools.docker_proxy.request import Ask, ask_of
from flettner.tools.docker_proxy.request_filter import Onward, RequestFilter
from flettner.tools.docker_proxy.strict_json import Json

BODY_WITHIN_S = 10.0
MOST_AT_ONCE = 128
LARGEST_LIST = 16 * 1024 * 1024
_NO_END = ClientTimeout(total=None, sock_connect=5)  # events, logs and wait last as long as the client stays
_BACK = ("Content-Type", "Api-Version", "Docker-Experimental", "Ostype", "X-Docker-Container-Path-Stat")
_log = structlog.get_logger("docker_proxy")


@dataclass(slots=True, kw_only=True)
class Proxy:
    """Each request reads `policy` again, so that a reload needs no restart."""

    policy: Callable[[], ProxyPolicy]
    session: ClientSession
    under_way: int = field(default=0, init=False)
    adopted_ids: set[str] = field(default_factory=set, init=False)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request; log it if it is refused or changes anything."""
        self.under_way += 1
        try:
            if self.under_way > MOST_AT_ONCE:
                return _error_response(503, "too many requests at once")
            return await self._handle(request)
        finally:
            self.under_way -= 1

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        line = _log.bind(
            method=shown(request.method)[1:-1], target=_log_target(request), **_peer_ids(request)
        )
        context = FieldContext(policy=self.policy(), files=host_files)
        request_filter = RequestFilter(
            context=context, engine=EngineSocket(session=self.session), adopted_ids=self.adopted_ids
        )
        try:
            ask = _parse_ask(request)
            onward = await request_filter.onward(ask, await _read_body(request, ask))
        except Refused as refused:
            line.warning("refused", reason=str(refused))
            return _error_response(
                413 if isinstance(refused, TooLarge) else 403, f"flettner-docker-proxy: {refused}"
            )
        except Absent as absent:
            return _error_response(404, str(absent))
        except EngineSilent as silent:
            line.warning("no answer", reason=str(silent))
            return _error_response(502, f"flettner-docker-proxy: {silent}")
        if ask.route.changes and ask.route.kind != "wait":
            line.info("passed", on=onward.path)
        return await self._pass(request, onward, request_filter)

    async def _pass(
        self, request: web.BaseRequest, onward: Onward, request_filter: RequestFilter
    ) -> web.StreamResponse:
        query = f"?{urlencode(onward.query)}" if onward.query else ""
        url = URL(f"{ADDRESS}{onward.path}{query}", encoded=True)
        headers = {"Content-Type": "application/json"} if onward.body is not None else {}
        try:
            async with self.session.request(
                onward.method, url, data=onward.body, headers=headers, timeout=_NO_END, allow_redirects=False
            ) as reply:
                if onward.filtered and reply.status == HTTPStatus.OK:
                    return await _filter_list(reply, request_filter)
                return await _stream_reply(request, reply)
        except (ClientError, OSError) as error:
            return _error_response(502, f"flettner-docker-proxy: the engine does not answer: {error}")


def _parse_ask(request: web.BaseRequest) -> Ask:
    if "Upgrade" in request.headers or "upgrade" in request.headers.get("Connection", "").lower():
        raise Refused("a connection cannot be taken over (attach, exec)")
    return ask_of(request.method, request.raw_path)


async def _read_body(request: web.BaseRequest, ask: Ask) -> bytes:
    most = ask.route.largest_body or 16
    if request.headers.get("Content-Encoding"):
        raise Refused("a compressed body is not read")
    if (request.content_length or 0) > most:
        raise TooLarge(f"{ask.route.kind}: the body is larger than {most} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > most:
                    raise TooLarge(f"{ask.route.kind}: the body is larger than {most} bytes")
    except TimeoutError:
        raise Refused(f"the body did not arrive within {BODY_WITHIN_S:.0f} s") from None
    except (web.RequestPayloadError, ClientError):
        raise Refused("the body is broken") from None
    return bytes(body)


async def _stream_reply(request: web.BaseRequest, reply: ClientResponse) -> web.StreamResponse:
    """Copy the reply byte for byte; abort the connection if the engine breaks off the stream."""
    back = web.StreamResponse(status=reply.status, reason=reply.reason)
    for name in _BACK:
        if name in reply.headers:
            back.headers[name] = reply.headers[name]
    if reply.content_length is not None and request.method != "HEAD":
        back.content_length = reply.content_length
    await back.prepare(request)
    try:
        async for chunk in reply.content.iter_any():
            await back.write(chunk)
        await back.write_eof()
    except ClientError:
        if request.transport is not None:
            request.transport.abort()
    return back


async def _filter_list(reply: ClientResponse, request_filter: RequestFilter) -> web.StreamResponse:
    """Return the list of containers, reduced to those that the policy allows."""
    text = bytearray()
    async for chunk in reply.content.iter_any():
        text += chunk
        if len(text) > LARGEST_LIST:
            return _error_response(502, "flettner-docker-proxy: the engine's list of containers is too long")
    containers = [entry for entry in json.loads(bytes(text)) if _is_listed(entry, request_filter)]
    return web.json_response(containers)


def _is_listed(entry: Json, request_filter: RequestFilter) -> bool:
    # A name with a second slash is a link: the alias by which another container knows it.
    names = {name[1:] for name in entry.get("Names") or []}
    containers = request_filter.policy.containers
    labelled = bool((entry.get("Labels") or {}).get(containers.label))
    return labelled or entry.get("Id") in request_filter.adopted_ids or not names.isdisjoint(containers.adopt)


def _error_response(status: int, message: str) -> web.Response:
    """Return an error in the Engine's format, so that its clients show the reason."""
    return web.json_response({"message": message}, status=status)


def _log_target(request: web.BaseRequest) -> str:
    return shown(request.raw_path.partition("?")[0])[1:-1]


def _peer_ids(request: web.BaseRequest) -> dict[str, int]:
    """Return the peer of the socket, according to the kernel."""
    end = request.get_extra_info("socket")
    if end is None:
        return {}
    try:
        pid, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        return {}
    return {"pid": pid, "uid": uid}


@asynccontextmanager
async def serving(listener: socket.socket, policy: Callable[[], ProxyPolicy]) -> AsyncIterator[Proxy]:
    """Answer on `listener`, a bound Unix socket, until the block ends; then cut open streams."""
    engine = UnixConnector(path=policy().socket.engine, limit=0)
    plain = {"Accept-Encoding": "identity"}
    async with ClientSession(connector=engine, headers=plain, auto_decompress=False) as session:
        proxy = Proxy(policy=policy, session=session)
        server = web.Server(proxy.handle, handler_cancellation=True, auto_decompress=False, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            yield proxy
        finally:
            await runner.cleanup()
