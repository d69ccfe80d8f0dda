"""Many vLLM servers for a benchmark of the daemon: one process at all addresses of 127/8.

Each has the same real page of vLLM 0.32, whose counters grow by one request a second, and answers /health;
/sent counts the pages that all have sent.

    python -m bench.capacity.pod_servers
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from aiohttp import ClientSession

PORT = 30_100  # below the ephemeral range
SCRAPES = Path(__file__).parents[2] / "tests/support/scrapes"
FIRST, LATER = "vllm-0.32.txt", "vllm-0.32-later.txt"  # of one process, before and after a request


def pods_of(target: int, pods: int) -> list[str]:
    """Return the addresses of a target's pods."""
    return [f"127.{1 + target // 250}.{1 + target % 250}.{1 + pod}:{PORT}" for pod in range(pods)]


class MovingPage:
    """The page of a second, made once for all pods."""

    def __init__(self) -> None:
        first, later = ((SCRAPES / name).read_text(encoding="utf-8").splitlines() for name in (FIRST, LATER))
        self._lines = list(_growing(first, later))
        self._second = -1
        self._answer = b""
        self.sent = 0

    def answer(self, second: int) -> bytes:
        if second != self._second:
            lines = (
                head if growth is None else f"{head} {start + second * growth}"
                for head, start, growth in self._lines
            )
            self._second, self._answer = second, _answer("\n".join(lines).encode() + b"\n")
        return self._answer


def _growing(first: list[str], later: list[str]) -> Iterator[tuple[str, float, float | None]]:
    """Yield each line without its value, the value, and its growth by one request; None: a comment."""
    for line, next_line in zip(first, later, strict=True):
        head, _, value = line.rpartition(" ")
        if line.startswith("#"):
            yield line, 0.0, None
        elif head.startswith("vllm:num_requests_running"):
            yield head, 1.0, 0.0
        else:
            growth = float(next_line.removeprefix(head)) - float(value)
            yield head, float(value), max(0.0, growth)


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class _Connection(asyncio.Protocol):
    """A client that waits for each answer, and sends no body."""

    def __init__(self, page: MovingPage) -> None:
        self._page = page
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if data.startswith(b"GET /metrics "):
            self._page.sent += 1
            self._transport.write(self._page.answer(int(time.monotonic())))
        elif data.startswith(b"GET /sent "):
            self._transport.write(_answer(b"%d" % self._page.sent))
        else:
            self._transport.write(_answer(b'{"version":"0.32.0"}'))


async def main() -> None:
    page = MovingPage()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(page),
        "0.0.0.0",  # noqa: S104 - all of 127/8
        PORT,
        backlog=4096,
    )
    async with server:
        await server.serve_forever()


async def count_sent() -> int:
    """Return how many pages all servers have sent."""
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{PORT}/sent") as response:
        return int(await response.text())


if __name__ == "__main__":
    asyncio.run(main())
