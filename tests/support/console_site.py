"""The console over a daemon, on a real port."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from flettner.agent.api.app import build_app
from flettner.agent.api.external_tokens import Authenticator
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.routes.console import pages
from flettner.agent.api.server import serve
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Role
from flettner.primitives.address import Address
from tests.support.api_tokens import store_roles
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.identity_provider import IdentityProvider
from tests.support.loop_thread import LoopThread, loop_thread

Result = TypeVar("Result")


@dataclass(kw_only=True)
class Site:
    """Can be stopped and started again at the same address."""

    daemon: FakeDaemonView
    tokens: Tokens
    token: Mapping[Role, str]
    file: Path  # of the tokens
    thread: LoopThread
    port: int = 0
    authenticators: Mapping[str, Authenticator] = field(default_factory=dict)
    provider: IdentityProvider | None = None  # at which people can sign in
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        limits = RateLimits(now=lambda: 0.0, burst=inf)
        app = build_app(
            self.daemon,
            self.tokens,
            (),
            pages(),
            authenticators=self.authenticators,
            public_url=self.url,
            limits=limits,
            heartbeat_s=0.2,
        )
        self._runner = self.thread.run(serve(app, Address("127.0.0.1", self.port)))
        self.port = self._runner.addresses[0][1]

    def stop(self) -> None:
        if self._runner is not None:
            self.thread.run(self._runner.cleanup())
            self.thread.run(asyncio.sleep(0.05))  # connections end in the next turns of the loop
            self._runner = None

    def change(self, how: Callable[[], Result]) -> Result:
        """Change the daemon in its event loop thread."""

        async def changed() -> Result:
            return how()

        return self.thread.run(changed())


@contextmanager
def site(daemon: FakeDaemonView, folder: Path) -> Iterator[Site]:
    file = folder / "tokens"
    token = store_roles(file)
    with loop_thread() as thread:
        place = Site(daemon=daemon, tokens=Tokens(file, daemon.now), token=token, file=file, thread=thread)
        place.start()
        yield place
        place.stop()
