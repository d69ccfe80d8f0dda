"""The console over a daemon, on a real port."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from flettner.agent.api.app import build_app
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.routes.console import pages
from flettner.agent.api.server import serve
from flettner.agent.api.tokens import Tokens, mint_token, store_tokens
from flettner.agent.config.listen import Role
from flettner.primitives.address import Address
from tests.support.fake_daemon_view import NOON, FakeDaemonView

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
Found = TypeVar("Found")


@dataclass(kw_only=True)
class Site:
    """Can be stopped and started again at the same address."""

    daemon: FakeDaemonView
    tokens: Tokens
    token: Mapping[Role, str]
    file: Path  # of the tokens
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        limits = RateLimits(now=lambda: 0.0, burst=inf)
        app = build_app(self.daemon, self.tokens, (), pages(), limits=limits, heartbeat_s=0.2)
        self._runner = self._wait(serve(app, Address("127.0.0.1", self.port)))
        self.port = self._runner.addresses[0][1]

    def stop(self) -> None:
        if self._runner is not None:
            self._wait(self._runner.cleanup())
            self._wait(asyncio.sleep(0.05))  # connections end in the next turns of the loop
            self._runner = None

    def change(self, how: Callable[[], Found]) -> Found:
        """Change the daemon in its event loop thread."""

        async def changed() -> Found:
            return how()

        return self._wait(changed())

    def _wait(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)


@contextmanager
def site(daemon: FakeDaemonView, folder: Path) -> Iterator[Site]:
    made = {
        role: mint_token(role=role, principal=f"{role} ann", made_at=NOON, expires=None) for role in ROLES
    }
    file = folder / "tokens"
    store_tokens(file, [token for _, token in made.values()])
    token = {role: text for role, (text, _) in made.items()}
    place = Site(daemon=daemon, tokens=Tokens(file, daemon.now), token=token, file=file)
    thread = threading.Thread(target=place._loop.run_forever, name="console")
    thread.start()
    try:
        place.start()
        yield place
        place.stop()
    finally:
        place._loop.call_soon_threadsafe(place._loop.stop)
        thread.join(timeout=60)
        place._loop.close()
