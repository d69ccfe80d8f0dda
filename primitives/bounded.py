"""Bounded reading of responses from other programs: a size limit for bodies, one error type for JSON."""

import json
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

MOST_BYTES = 8 * 2**20  # a vLLM server's metrics page has 50 kB per data-parallel rank
MOST_OF_AN_ERROR = 4096


async def read_body(answer: "aiohttp.ClientResponse", at_most: int = MOST_BYTES) -> bytes:
    """Read the full body, decompressed. Raises ValueError if it is larger than `at_most` bytes."""
    return await read_stream(answer.content.iter_any(), at_most)


async def read_stream(chunks: AsyncIterable[bytes], at_most: int = MOST_BYTES) -> bytes:
    """Read a stream to its end. Raises ValueError if it is larger than `at_most` bytes."""
    body = bytearray()
    async for chunk in chunks:
        _append(body, chunk, at_most)
    return bytes(body)


def join_chunks(chunks: Iterable[bytes], at_most: int = MOST_BYTES) -> bytes:
    """Like `read_stream`, for blocking libraries. Raises ValueError."""
    body = bytearray()
    for chunk in chunks:
        _append(body, chunk, at_most)
    return bytes(body)


async def read_error(answer: "aiohttp.ClientResponse") -> str:
    """Read the beginning of an error response's body."""
    return (await answer.content.read(MOST_OF_AN_ERROR)).decode("utf-8", "replace")


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON. Raises ValueError, also for nesting beyond Python's recursion limit."""
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("the answer is nested too deeply") from error


def _append(body: bytearray, chunk: bytes, at_most: int) -> None:
    body += chunk
    if len(body) > at_most:
        raise ValueError(f"the answer is larger than {at_most} bytes")
