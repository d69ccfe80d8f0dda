"""Calls of the REST API of a forge."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from flettner.agent.domain.errors import ForgeError
from flettner.primitives.bounded import parse_json, read_body

ANSWERS_WITHIN_S = 20.0
MOST_BYTES = 2 * 2**20
REFUSED = 400


async def call(
    method: str, url: str, headers: Mapping[str, str], body: object = None, *, also: tuple[int, ...] = ()
) -> tuple[int, Any]:
    """Return status and document; `also`: statuses that are no error. Raises ForgeError."""
    timeout = aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                method,
                url,
                json=body,
                headers={"User-Agent": "flettner", **headers},
                allow_redirects=False,  # a token would follow
            ) as answer,
        ):
            text = await read_body(answer, MOST_BYTES)
            status = answer.status
        document = parse_json(text) if text else None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ForgeError(f"{method} {url}: {type(error).__name__}") from None
    if status in also or status < REFUSED:
        return status, document
    told = document.get("message") if isinstance(document, dict) else ""
    raise ForgeError(f"{method} {url} answered {status}: {str(told)[:200]}")
