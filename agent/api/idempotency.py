"""`Idempotency-Key`: a repeated request gets the response of the first one.

Responses are kept in memory. After a restart a repeat of an accepted request is recognised by its journal
entry and answered from the state in that entry; it is not executed again.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.request_parsing import read_body
from flettner.agent.audit.history import Accepted
from flettner.agent.domain.state import State

HEADER = "Idempotency-Key"
FAILED = 500  # the daemon failed; a repeat is executed again
KEPT = 256  # responses, of some kilobytes each
SHAPE = re.compile(r"[\x21-\x7e]{1,128}")

IdempotentCall = Callable[[str, State | None], Awaitable[web.StreamResponse]]
"""Takes the request's name for the journal entry, and the resulting state if accepted before a restart."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]

    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@dataclass(slots=True)
class _Kept:
    asked: str  # hash of path and body
    answer: _Answer | None = None  # None while the request is in progress


@dataclass(slots=True)
class IdempotencyKeys:
    before: Callable[[str], Accepted | None]  # requests accepted before the daemon started
    _kept: dict[str, _Kept] = field(default_factory=dict)  # oldest first

    async def once(
        self, request: web.Request, caller: str, work: IdempotentCall, *, needed: bool = False
    ) -> web.StreamResponse:
        """The response of `work`, or the stored one of the same request and caller.

        Raises RequestRefusedError: 400 without a key if one is `needed`, 409 while the first is in progress
        and for the key of another request, 422 for a malformed key; 400, 408, 413 and 415 for the body.
        """
        key = request.headers.get(HEADER)
        if key is None and needed:
            detail = f"Send {HEADER}: a new random value for each decision, the same value for a repeat."
            raise RequestRefusedError(400, detail, kind="key-missing")
        if key is None:
            return await work("", None)
        if not SHAPE.fullmatch(key):
            raise RequestRefusedError(
                422, f"{HEADER} must be 1 to 128 printable ASCII characters without spaces."
            )
        body = await read_body(request)
        name, asked = _hash(caller.encode(), key.encode()), _hash(request.path.encode(), body)
        earlier = self._kept.get(name)
        if earlier is not None:
            return _again(earlier, asked)
        accepted = self.before(name)
        if accepted is not None and accepted.asked != asked:
            raise _other()
        mine = self._kept[name] = _Kept(asked=asked)
        try:
            answer = await _answer(partial(work, f"{name}:{asked}", accepted.state if accepted else None))
            if answer.status < FAILED and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
                mine.answer = _Answer(answer.status, answer.body, tuple(answer.headers.items()))
        finally:
            if mine.answer is None:
                del self._kept[name]
        self._forget_oldest()
        return answer

    def _forget_oldest(self) -> None:
        done = [name for name, earlier in self._kept.items() if earlier.answer is not None]
        for name in done[: max(0, len(done) - KEPT)]:
            del self._kept[name]


def _hash(*parts: bytes) -> str:
    """Half a SHA-256, so that neither the key nor the body appears in the journal."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _again(earlier: _Kept, asked: str) -> web.Response:
    if earlier.asked != asked:
        raise _other()
    if earlier.answer is None:
        detail = "The first request with this key is still in progress; try again later."
        raise RequestRefusedError(409, detail, kind="in-progress", headers={"Retry-After": "1"})
    return earlier.answer.response()


def _other() -> RequestRefusedError:
    detail = f"This {HEADER} was sent with another request; take a new key for each."
    return RequestRefusedError(409, detail, kind="key-of-another-request")


async def _answer(work: Callable[[], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    try:
        return await work()
    except RequestRefusedError as refusal:
        return refusal.response()
