"""What another program answers, as far as it goes: so many bytes, and JSON that ends somewhere."""

import json
from collections.abc import AsyncIterable, Iterable
from typing import Any

import aiohttp

MOST_BYTES = 8 * 2**20  # a page of a vLLM server's metrics is 50 kB per data-parallel rank
MOST_OF_AN_ERROR = 4096


async def body_of(answer: aiohttp.ClientResponse, at_most: int = MOST_BYTES) -> bytes:
    """The whole body, unpacked. Raises ValueError when it is larger than `at_most` bytes."""
    return await flowed(answer.content.iter_any(), at_most)


async def flowed(chunks: AsyncIterable[bytes], at_most: int = MOST_BYTES) -> bytes:
    """All that comes, of whatever stream. Raises ValueError when it is more than `at_most` bytes."""
    body = bytearray()
    async for chunk in chunks:
        _add(body, chunk, at_most)
    return bytes(body)


def gathered(chunks: Iterable[bytes], at_most: int = MOST_BYTES) -> bytes:
    """The same for a library that waits. Raises ValueError."""
    body = bytearray()
    for chunk in chunks:
        _add(body, chunk, at_most)
    return bytes(body)


async def error_in(answer: aiohttp.ClientResponse) -> str:
    """The beginning of what it says about a refusal."""
    return (await answer.content.read(MOST_OF_AN_ERROR)).decode("utf-8", "replace")


def json_in(body: bytes) -> Any:  # noqa: ANN401 - whatever JSON came
    """Raises ValueError."""
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("the answer is nested too deeply") from error


def _add(body: bytearray, chunk: bytes, at_most: int) -> None:
    body += chunk
    if len(body) > at_most:
        raise ValueError(f"the answer is larger than {at_most} bytes")
