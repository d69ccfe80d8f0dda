"""Strict parsing of requests: invalid JSON is 400, JSON of the wrong shape is 422.

Texts that people send are bounded in bytes, without characters that change how a text is displayed.
"""

import asyncio
import json
import math
from typing import Annotated, Any

from aiohttp import web
from pydantic import AfterValidator, BaseModel, Field, StringConstraints, ValidationError

from flettner.agent.api.problems import Fault, RequestRefusedError

BODY_LIMIT = 64 * 1024  # bytes
BODY_TIMEOUT_S = 10.0  # honest clients send a body at once
LONGEST_TEXT = 500
"""Bytes of UTF-8: a text becomes a part of the audit journal, whose size is bounded."""


_HIDDEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, all but tab and newline
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional: they reorder what is shown
    r"\u200b\u2028\u2029\u2060-\u2065\ufeff"  # invisible, or a line break in some programs only
)
PLAIN = rf"^[^{_HIDDEN}]*$"
NOT_BLANK = rf"^[^{_HIDDEN}]*[^\s{_HIDDEN}][^{_HIDDEN}]*$"


def _bounded(text: str) -> str:
    if len(text.encode()) > LONGEST_TEXT:
        raise ValueError(f"must be at most {LONGEST_TEXT} bytes of UTF-8")
    return text


_DESCRIPTION = f"at most {LONGEST_TEXT} bytes of UTF-8, without control and bidirectional characters"
Reason = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_TEXT, pattern=NOT_BLANK),
    AfterValidator(_bounded),
    Field(description=_DESCRIPTION),
]
Comment = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=LONGEST_TEXT, pattern=PLAIN),
    AfterValidator(_bounded),
    Field(description=_DESCRIPTION),
]


async def body_of(request: web.Request, kind: type[BaseModel]) -> BaseModel:
    """Raises RequestRefusedError (400, 408, 413, 415 or 422)."""
    if request.content_type != "application/json":
        raise _unsupported()
    return _valid(kind, _json(await read_body(request)), "body")


async def read_body(request: web.Request) -> bytes:
    """Raises RequestRefusedError (400, 408, 413 or 415)."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _unsupported()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError as error:
        detail = f"The body did not arrive within {BODY_TIMEOUT_S:g} s; send it at once."
        raise RequestRefusedError(408, detail, headers={"Connection": "close"}) from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise RequestRefusedError(
            400, "The body ended early or is badly framed.", headers={"Connection": "close"}
        ) from error


def _unsupported() -> RequestRefusedError:
    return RequestRefusedError(
        415,
        "Send the body as `Content-Type: application/json`, not compressed.",
        headers={"Accept": "application/json"},
    )


def query_of(request: web.Request, kind: type[BaseModel]) -> BaseModel:
    """Raises RequestRefusedError (422), also for parameters given twice."""
    repeated = sorted(name for name in set(request.query) if len(request.query.getall(name)) > 1)
    if repeated:
        faults = tuple(Fault(at=_clean(name), why="given more than once") for name in repeated)
        raise RequestRefusedError(
            422, "A query parameter is given more than once; give it once.", faults=faults
        )
    try:
        return kind.model_validate_strings(dict(request.query))
    except ValidationError as error:
        raise _refusal(error, "query") from error


def _json(raw: bytes) -> object:
    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_constant,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise RequestRefusedError(
            400, "The body is nested too deeply to be a request of this API."
        ) from error
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else _clean(str(error))
        raise RequestRefusedError(400, f"The body is not JSON in UTF-8: {reason}.") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has the same member twice")
    return members


def _constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _valid(kind: type[BaseModel], value: object, part: str) -> BaseModel:
    try:
        return kind.model_validate(value, strict=True)
    except ValidationError as error:
        raise _refusal(error, part) from error


def _refusal(error: ValidationError, part: str) -> RequestRefusedError:
    """Names every invalid field; never repeats its value."""
    faults = tuple(
        Fault(at=_clean(".".join(str(step) for step in problem["loc"])) or part, why=_clean(problem["msg"]))
        for problem in error.errors(include_input=False, include_url=False, include_context=False)
    )[:20]
    detail = f"The {part} is not what this operation takes: {faults[0].at}: {faults[0].why}."
    return RequestRefusedError(422, detail, kind="invalid", faults=faults)


def _clean(text: Any) -> str:  # noqa: ANN401 - a message of any parser
    """At most 200 characters that JSON can carry: no lone surrogates."""
    return str(text).encode("utf-8", "replace").decode("utf-8")[:200]
