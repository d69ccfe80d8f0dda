"""Ask a server the golden prompts: always the same requests, so that only the server differs."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.retrying import retry
from flettner.primitives.bounded import parse_json, read_body

TOKENS = 48  # requested for each answer
BEYOND = 1e6  # out of range for a log-probability; vLLM writes -9999 for impossible tokens
MOST_TOKENS = 1_000_000  # limit for a reported count
BUSY = frozenset({429, 503})  # a queue limit of the server's own
_AT_ONCE = 8
_RETRY_S = 0.2
_OK, _REFUSED = 200, 400

Json = dict[str, Any]


async def answers(
    session: aiohttp.ClientSession, model: str, prompts: Sequence[str]
) -> tuple[GoldenAnswer, ...]:
    """Return the answers in the order of the prompts; a failed one has finish_reason "failed"."""
    gate = asyncio.Semaphore(_AT_ONCE)
    salt = secrets.token_hex(8)  # no hits in the prefix cache of an earlier round

    async def ask(prompt: str) -> GoldenAnswer:
        async with gate:
            return await _answer(session, {"model": model, "prompt": prompt}, salt)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(prompt)) for prompt in prompts]
    return tuple(task.result() for task in asked)


async def _answer(session: aiohttp.ClientSession, asked: Json, salt: str) -> GoldenAnswer:
    """Ask for log-probabilities, and uncached, if the server accepts that; ask again while it is busy."""
    plain = {**asked, "max_tokens": TOKENS, "temperature": 0, "seed": 0}
    bodies = [plain, {**plain, "logprobs": 0, "cache_salt": salt}]

    async def ask() -> GoldenAnswer | None:
        try:
            async with session.post("/v1/completions", json=bodies[-1], allow_redirects=False) as answer:
                if answer.status == _OK:
                    return parse_answer(parse_json(await read_body(answer)))
                refused, busy = answer.status == _REFUSED, answer.status in BUSY
        except (aiohttp.ClientError, ValueError):
            return FAILED
        if refused and len(bodies) > 1:
            bodies.pop()
            return await ask()
        return None if busy else FAILED

    asking = AsyncRetrying(retry=retry_if_result(lambda given: given is None), wait=wait_fixed(_RETRY_S))
    return await retry(asking, ask) or FAILED


FAILED = GoldenAnswer(finish_reason="failed")


def parse_answer(body: Any) -> GoldenAnswer:  # noqa: ANN401 - any JSON
    """Return the answer in the body of a completion; FAILED if there is none."""
    try:
        choice = body["choices"][0]
        text, usage = str(choice["text"]), body.get("usage") or {}
        tokens, logprobs = _tokens(choice.get("logprobs"))
        counted = usage.get("completion_tokens")
        if not isinstance(counted, int) or not 0 <= counted <= MOST_TOKENS:
            counted = len(tokens or text.split())
        return GoldenAnswer(
            text=text,
            finish_reason=str(choice.get("finish_reason") or ""),
            length=counted,
            tokens=tokens,
            logprobs=logprobs,
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return FAILED


def _tokens(document: Any) -> tuple[tuple[str, ...], tuple[float, ...]]:  # noqa: ANN401 - as above
    """Return tokens and log-probabilities; empty unless each token has one."""
    tokens, logprobs = (document or {}).get("tokens") or (), (document or {}).get("token_logprobs") or ()
    if len(tokens) != len(logprobs) or not all(map(_finite, logprobs)):
        return (), ()
    return tuple(map(str, tokens)), tuple(map(float, logprobs))


def _finite(value: object) -> bool:
    """JSON may hold NaN, and integers too large for a float."""
    return isinstance(value, int | float) and abs(value) < BEYOND
