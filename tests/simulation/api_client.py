"""A client of a simulated daemon's API: HTTP bytes through the real application to that daemon."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from flettner.agent.api.app import build_app
from flettner.agent.api.daemon_view import DaemonView
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.tokens import Token, Tokens, mint_token, store_tokens
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import ConfigError
from tests.simulation.clock import EPOCH

if TYPE_CHECKING:
    from tests.simulation.process import Daemon

PRINCIPALS: dict[str, Role] = {"alice": "operator", "bob": "operator", "victor": "viewer"}
NO_ANSWER_S = 12.0  # then a client hangs up
SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a disk in memory
CURRENT_DAEMON: ContextVar[DaemonView] = ContextVar("daemon")
OnStatus = Callable[[int], None]


class _CurrentDaemon:
    """Forwards to the daemon of the current process."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given: getattr(CURRENT_DAEMON.get(), name)(*given)  # noqa: PLW0108 - resolved at the call


@dataclass(frozen=True, slots=True)
class SharedApi:
    """One API for all histories: costly to build, and stateless except for the tokens."""

    app: web.Application
    tokens: Tokens
    texts: dict[str, str]
    lines: dict[str, Token]

    def names(self) -> frozenset[str]:
        """Principals with a token in force."""
        return frozenset(token.principal for token in self.tokens._tokens.values())

    def reload(self, names: Sequence[str], *, broken: bool = False) -> None:
        """SIGHUP after a rewrite of the tokens file with the tokens of `names`."""
        with TemporaryDirectory(dir=SHM) as home:
            path = Path(home) / "tokens"
            store_tokens(path, [self.lines[name] for name in names])
            if broken:
                path.write_text("{not a token}\n")
                path.chmod(0o600)
            self.tokens._path = path
            with (
                suppress(ConfigError) if broken else nullcontext()
            ):  # flettner.agent.api.credentials: it is logged
                self.tokens.reload()


@cache
def shared_api() -> SharedApi:
    made = {
        name: mint_token(role=role, principal=name, made_at=EPOCH, expires=None)
        for name, role in PRINCIPALS.items()
    }
    tokens = Tokens(None, lambda: EPOCH)
    limits = RateLimits(now=lambda: 0.0, burst=1e9, at_once=1000)
    app = build_app(cast("DaemonView", _CurrentDaemon()), tokens, limits=limits)
    app.freeze()
    api = SharedApi(
        app=app,
        tokens=tokens,
        texts={name: text for name, (text, _) in made.items()},
        lines={name: line for name, (_, line) in made.items()},
    )
    api.reload(tuple(PRINCIPALS))
    return api


@dataclass(eq=False)
class Connection(asyncio.Transport):
    """An in-memory connection; responses of a killed process are dropped."""

    is_received: Callable[[], bool]
    on_status: OnStatus
    answer: bytes = b""
    open: bool = True
    extra: dict[str, Any] = field(default_factory=lambda: {"peername": ("127.0.0.1", 1)})

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answer += bytes(data)

    def writelines(self, list_of_data: Any) -> None:  # noqa: ANN401 - buffers
        self.answer += b"".join(bytes(chunk) for chunk in list_of_data)

    def is_closing(self) -> bool:
        return not self.open

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        if self.is_received() and self.answer:
            self.on_status(int(self.answer.split(b" ", 2)[1]))

    def abort(self) -> None:
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's
        return self.extra.get(name, default)

    def pause_reading(self) -> None:
        """Everything has been sent."""

    def resume_reading(self) -> None:
        """Everything has been sent."""


def ask(process: "Daemon", who: str, path: str, body: object, *, key: str, on_status: OnStatus) -> None:
    """POST `body` as `who`; `on_status` gets the status of the response, if any."""
    loop, content = process.world.loop, b"" if body is None else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {shared_api().texts[who]}\r\nIdempotency-Key: {key}\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    wire = Connection(is_received=lambda: not process.killed, on_status=on_status)
    context = loop.owned_by(process.owner)
    context.run(CURRENT_DAEMON.set, process.runtime)
    protocol = context.run(_server(loop))
    context.run(protocol.connection_made, wire)
    context.run(protocol.data_received, head.encode() + content)

    def hang_up() -> None:
        wire.open = False
        context.run(protocol.connection_lost, None)

    loop.outside(NO_ANSWER_S, hang_up)


def _server(loop: asyncio.AbstractEventLoop) -> web.Server:
    def request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.Request:
        return web.Request(message, payload, protocol, writer, task, loop, client_max_size=2**16)

    return web.Server(shared_api().app._handle, request_factory=request, loop=loop, access_log=None)  # type: ignore[arg-type]
