"""Recorded /metrics pages with edits, and a server that answers with given bytes."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.sensors.run_sensor import DEADLINE_S

SCRAPES = Path(__file__).parents[2] / "support" / "scrapes"
PAGE = (SCRAPES / "vllm-0.32.txt").read_bytes()
LATER = (SCRAPES / "vllm-0.32-later.txt").read_bytes()  # 1 s and one request later, same process

OLD_NAMES = {  # 0.10 and the hidden names of 0.11
    b"vllm:kv_cache_usage_perc": b"vllm:gpu_cache_usage_perc",
    b"vllm:prefix_cache_": b"vllm:gpu_prefix_cache_",
    b"vllm:inter_token_latency_seconds": b"vllm:time_per_output_token_seconds",
}
NOT_THERE = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
DISABLED_LOG_STATS = b"".join(line for line in PAGE.splitlines(keepends=True) if b"vllm:" not in line)


def with_values(page: bytes, **values: object) -> bytes:
    """Set every series of `vllm:NAME` (`__` in a name stands for a colon) to the value."""
    for name, value in values.items():
        page, count = re.subn(
            rf"^((?:vllm:)?{name}(?:\{{.*\}})?) \S+$".encode(),
            lambda match, value=value: match[1] + f" {value}".encode(),  # type: ignore[misc]
            page,
            flags=re.MULTILINE,
        )
        assert count, name
    return page


def without(page: bytes, *names: str) -> bytes:
    """Remove the samples and comments of `vllm:NAME...`."""
    unwanted = tuple(f"vllm:{name}".encode() for name in names)
    lines = [
        line
        for line in page.splitlines(keepends=True)
        if not line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ").startswith(unwanted)
    ]
    assert len(lines) < len(page.splitlines())
    return b"".join(lines)


def renamed(page: bytes, names: dict[bytes, bytes]) -> bytes:
    for new, old in names.items():
        page = page.replace(new, old)
    return page


def two_engines(first: bytes, second: bytes) -> bytes:
    """The page of a server with two data-parallel ranks: each family has both, one after the other."""
    return b"".join(
        part + same_part.replace(b'engine="0"', b'engine="1"') if part.startswith(b"vllm:") else part
        for part, same_part in zip(_families(first), _families(second), strict=True)
    )


def _families(page: bytes) -> list[bytes]:
    """Return comments and samples separately, in order."""
    return re.findall(rb"(?m)(?:^#.*\n)+|(?:^[^#].*\n)+", page)


def answer(body: bytes) -> bytes:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class PageServer:
    """Answer each path with bytes, or never (None); count requests."""

    answers: dict[str, bytes | None] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    address: str = ""
    silent: list[asyncio.StreamWriter] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def says(self, page: bytes, version: bytes = b'{"version":"0.32.0"}') -> None:
        self.answers = {"/metrics": answer(page), "/version": answer(version)}

    async def until_requested(self, path: str, times: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.requests[path] < times:
                self.news.clear()
                await self.news.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            self.requests[path] += 1
            self.news.set()
            response = self.answers.get(path, NOT_THERE)
            if response is None:
                self.silent.append(writer)
                return
            writer.write(response)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def page_server(page: bytes = PAGE) -> AsyncIterator[PageServer]:
    pages = PageServer()
    pages.says(page)
    serve: Callable[..., object] = pages._serve
    server = await asyncio.start_server(serve, "127.0.0.1", 0)  # type: ignore[arg-type]
    pages.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield pages
    finally:
        server.close()
        for writer in pages.silent:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
