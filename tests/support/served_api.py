"""Serves an API from a thread of its own, for tests that are not async themselves."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from flettner.agent.api.app import build_app
from flettner.agent.api.daemon_view import DaemonView
from flettner.agent.api.peer_identity import PeerIdentities
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.server import serve
from flettner.agent.api.tokens import Tokens
from flettner.primitives.address import UNIX, Address, UnixSocket


@contextmanager
def served(
    daemon: DaemonView, tokens: Tokens, listen: str = "127.0.0.1:0", peers: PeerIdentities | None = None
) -> Iterator[int]:
    """Yields the port; 0 for a unix socket. One caller may ask as much as it likes."""
    unlimited = RateLimits(now=lambda: 0.0, burst=inf)
    app = build_app(daemon, tokens, peers=peers, limits=unlimited, heartbeat_s=0.05)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="api")
    thread.start()
    try:
        listener = UnixSocket.parse(listen) if listen.startswith(UNIX) else Address.parse(listen)
        runner = asyncio.run_coroutine_threadsafe(serve(app, listener), loop).result(timeout=60)
        address = runner.addresses[0]
        yield 0 if isinstance(address, str) else address[1]
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=60)
        loop.close()
