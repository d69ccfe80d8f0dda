"""Ask a vLLM server over HTTP: does it answer, how busy is it; and send it its first requests."""

import asyncio
import errno
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from agent.errors import ActError

_AT_ONCE = 8
_TOKENS = 16  # asked of each warm-up request: some decode steps
_LENGTHS = (8, 64, 256, 1024)  # words of a prompt; those beyond an eighth of the context are left out
_RETRY_S = 0.2
_BUSY_STATUS = frozenset({429, 503})  # a queue limit of the server's own
_IN_ENGINE = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What /health answered: `why` it is not healthy, empty when it is; `refused`: nobody listens there."""

    why: str = ""
    status: int | None = None  # None: no answer
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiProbe:
    """`address`: "127.0.0.1:8000". `api_key` is what `/v1` asks for, where it asks."""

    address: str
    api_key: str = field(default="", repr=False)

    async def health(self, timeout_s: float = 5.0) -> Health:
        try:
            async with self._session(timeout_s) as session, session.get("/health") as answer:
                why = "" if answer.status == 200 else f"/health answers {answer.status}"  # noqa: PLR2004
                return Health(why=why, status=answer.status)
        except TimeoutError:
            return Health(why=f"/health does not answer within {timeout_s:g} s")
        except (aiohttp.ClientError, ValueError) as error:
            refused = isinstance(error, aiohttp.ClientConnectorError) and error.errno == errno.ECONNREFUSED
            return Health(why=f"/health cannot be asked: {error}", refused=refused)

    async def busy(self, timeout_s: float = 5.0) -> int | None:
        """Requests running and waiting, over all its engines. None: no answer, or it does not count them."""
        try:
            async with self._session(timeout_s) as session, session.get("/metrics") as answer:
                if answer.status != 200:  # noqa: PLR2004
                    return None
                counts = _IN_ENGINE.findall(await answer.text(errors="replace"))
                return round(sum(map(float, counts))) if counts else None
        except (TimeoutError, aiohttp.ClientError, ValueError, OverflowError):
            return None

    async def warm_up(self, requests: int, deadline_s: float) -> None:
        """Complete prompts of several lengths, the first alone, then some at once.

        Raises ActError when more than half fail, or the deadline passes.
        """
        done: list[str] = []
        gate = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.timeout(deadline_s), self._session(None) as session:
                model, context = await self._model(session)

                async def send(number: int) -> None:
                    async with gate:
                        done.append(await _complete(session, model, _prompt(number, context)))

                await send(0)
                async with asyncio.TaskGroup() as group:
                    for number in range(1, requests):
                        group.create_task(send(number))
        except TimeoutError as error:
            sofar = f"{len(done)} of {requests} warm-up requests were done within {deadline_s:g} s"
            raise ActError(f"{self.address}: {sofar}") from error
        failed = [why for why in done if why]
        if len(failed) * 2 > len(done):
            raise ActError(
                f"{self.address}: {len(failed)} of {len(done)} warm-up requests failed: {failed[0]}"
            )

    async def _model(self, session: aiohttp.ClientSession) -> tuple[str, int]:
        """What it calls itself, and its context length in tokens."""
        try:
            async with session.get("/v1/models") as answer:
                answer.raise_for_status()
                body = await answer.json(content_type=None)
                first = body["data"][0]
                return str(first["id"]), int(first.get("max_model_len") or 2048)
        except (aiohttp.ClientError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ActError(f"{self.address}: /v1/models names no model: {error!r}") from error

    @asynccontextmanager
    async def _session(self, timeout_s: float | None) -> AsyncIterator[aiohttp.ClientSession]:
        """A new one each time: an old connection would not tell whether the server still takes new ones."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=5.0)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        async with aiohttp.ClientSession(
            f"http://{self.address}", timeout=timeout, headers=headers
        ) as session:
            yield session


def _prompt(number: int, context: int) -> str:
    lengths = [length for length in _LENGTHS if length * 8 <= context] or [1]
    count = lengths[number % len(lengths)]
    return " ".join([str(number), *["warm"] * count])  # each begins otherwise: no prefix is cached


async def _complete(session: aiohttp.ClientSession, model: str, prompt: str) -> str:
    """Why the request failed; empty when it did not."""
    body = {"model": model, "prompt": prompt, "max_tokens": _TOKENS, "stream": True, "ignore_eos": True}
    while True:
        try:
            async with session.post("/v1/completions", json=body) as answer:
                if answer.status not in _BUSY_STATUS:
                    return await _streamed(answer)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return repr(error)
        await asyncio.sleep(_RETRY_S)


async def _streamed(answer: aiohttp.ClientResponse) -> str:
    if answer.status != 200:  # noqa: PLR2004
        return f"status {answer.status}: {(await answer.text(errors='replace'))[:200]}"
    tokens = 0
    async for line in answer.content:
        data = line.strip().removeprefix(b"data:").strip()
        if not data or data == b"[DONE]":
            continue
        match json.loads(data):
            case {"error": error}:
                return f"an error in the stream: {str(error)[:200]}"
            case {"choices": [{"finish_reason": "abort"}, *_]}:
                return "the server aborted it"
            case _:
                tokens += 1
    return "" if tokens else "the stream was empty"
