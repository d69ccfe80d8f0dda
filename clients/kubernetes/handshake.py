"""Close the connection of a TLS handshake that is cancelled.

httpcore2 (2.16) closes it if the handshake fails, but not on a cancellation: the socket stays open until it
is garbage collected. A watch that ends while it connects again, and the end of a daemon, cancel handshakes.
"""

import asyncio
import ssl

from httpcore2 import AsyncNetworkStream
from httpcore2._backends.anyio import AnyIOStream

_start_tls = AnyIOStream.start_tls


async def _start_tls_or_close(
    stream: AnyIOStream,
    ssl_context: ssl.SSLContext,
    server_hostname: str | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - the name that httpcore2 gives it
) -> AsyncNetworkStream:
    try:
        return await _start_tls(stream, ssl_context, server_hostname, timeout)
    except asyncio.CancelledError:
        await stream.aclose()
        raise


def close_cancelled_handshakes() -> None:
    """Do so from now on, for every client of httpx2 in this process."""
    AnyIOStream.start_tls = _start_tls_or_close  # type: ignore[method-assign, assignment]
