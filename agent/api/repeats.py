"""`Idempotency-Key`: a request that is sent again gets the answer that the first one got.

Kept in memory only. After a restart a repeat is carried out again, which the operations stand by themselves:
an approval names its digest, and a denial, an abort or a pause of what is already so changes nothing.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from agent.api.problems import Refusal

HEADER = "Idempotency-Key"
FAILED = 500  # from here on it is the daemon's failure, and the next attempt may do better
KEPT = 256  # answers, of some kilobytes each
SHAPE = re.compile(r"[\x21-\x7e]{1,128}")

Work = Callable[[], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]

    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@dataclass(slots=True)
class _Kept:
    request: str  # hash of what was asked
    answer: _Answer | None = None  # None: it is being worked on


@dataclass(slots=True)
class Repeats:
    _kept: dict[tuple[str, str], _Kept] = field(default_factory=dict)  # oldest first

    async def once(self, request: web.Request, caller: str, work: Work) -> web.StreamResponse:
        """The answer of `work`, or the one that the same request of the same caller got.

        Raises Refusal 409 while the first is worked on, 422 for a key that belongs to another request.
        """
        key = request.headers.get(HEADER)
        if key is None:
            return await work()
        if not SHAPE.fullmatch(key):
            raise Refusal(422, f"{HEADER} must be 1 to 128 printable ASCII characters without spaces.")
        asked = hashlib.sha256(b"\0".join((request.path.encode(), await request.read()))).hexdigest()
        known = self._kept.get((caller, key))
        if known is not None:
            return _again(known, asked)
        mine = _Kept(request=asked)
        self._kept[caller, key] = mine
        try:
            answer = await _answer(work)
            if answer.status < FAILED and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
                mine.answer = _Answer(answer.status, answer.body, tuple(answer.headers.items()))
        finally:
            if mine.answer is None:
                del self._kept[caller, key]
        self._forget_oldest()
        return answer

    def _forget_oldest(self) -> None:
        done = [key for key, kept in self._kept.items() if kept.answer is not None]
        for key in done[: max(0, len(done) - KEPT)]:
            del self._kept[key]


def _again(known: _Kept, asked: str) -> web.Response:
    if known.request != asked:
        detail = f"This {HEADER} was sent with another request; take a new key for each."
        raise Refusal(422, detail, kind="key-of-another-request")
    if known.answer is None:
        detail = "The first request with this key is still worked on; ask again."
        raise Refusal(409, detail, kind="in-progress", headers={"Retry-After": "1"})
    return known.answer.response()


async def _answer(work: Work) -> web.StreamResponse:
    try:
        return await work()
    except Refusal as refusal:
        return refusal.response()
