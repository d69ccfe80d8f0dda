"""Serves an API from a thread of its own, for tests that are not async themselves."""

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
from tests.support.loop_thread import loop_thread


@contextmanager
def served(
    daemon: DaemonView, tokens: Tokens, listen: str = "127.0.0.1:0", peers: PeerIdentities | None = None
) -> Iterator[int]:
    """Yields the port; 0 for a unix socket. One caller may ask as much as it likes."""
    unlimited = RateLimits(now=lambda: 0.0, burst=inf)
    app = build_app(daemon, tokens, peers=peers, limits=unlimited, heartbeat_s=0.05)
    listener = UnixSocket.parse(listen) if listen.startswith(UNIX) else Address.parse(listen)
    with loop_thread() as thread:
        runner = thread.run(serve(app, listener))
        address = runner.addresses[0]
        yield 0 if isinstance(address, str) else address[1]
        thread.run(runner.cleanup())
