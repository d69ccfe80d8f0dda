"""What a vLLM server answers, as far as it goes: so many bytes, and JSON that is not nested without end."""

import json
from typing import Any

import aiohttp

MOST_BYTES = 8 * 2**20  # what the sensor of its metrics reads at most, too
MOST_OF_AN_ERROR = 4096


async def body_of(answer: aiohttp.ClientResponse, at_most: int = MOST_BYTES) -> bytes:
    """The whole body, unpacked. Raises ValueError when it is larger than `at_most` bytes."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > at_most:
            raise ValueError(f"the answer is larger than {at_most} bytes")
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
